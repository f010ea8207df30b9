"""One account in one pool: what it has, what it is guaranteed, and in which class it asks for more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from dagster_gpufair.policy.models import Borrowing, Policy
from dagster_gpufair.policy.quantities import ONE_GPU
from dagster_gpufair.scheduling.model import Account, Class

PAUSED = "borrowing is paused"


class Rights(NamedTuple):
    """What work of a tier and kind may do, whoever asks.

    ``urgent`` work is not bound by the rules for borrowing; ``barred`` names the rule that keeps other
    work from borrowing, if one does.
    """

    urgent: bool
    barred: str | None


def rights_of(policy: Policy, team: str, pool: str, tier: str, kind: str | None) -> Rights | None:
    """What a team's work of a tier and kind may do in a pool; an unknown tier has no rights."""
    if tier not in policy.tiers:
        return None
    barred = _barred(policy, policy.borrowing_rules(team, pool), tier, kind)
    return Rights(policy.tiers[tier].may_preempt, barred)


def _barred(policy: Policy, borrowing: Borrowing, tier: str, kind: str | None) -> str | None:
    if borrowing.mode == "off":
        return "borrowing is off"
    if borrowing.tiers != "all" and tier not in borrowing.tiers:
        return f"tier {tier} may not borrow ({', '.join(borrowing.tiers)} may)"
    if borrowing.kinds != "all" and kind not in borrowing.kinds:
        work = "work without a kind" if kind is None else f"work of kind {kind}"
        return f"{work} may not borrow ({', '.join(borrowing.kinds)} may)"
    return PAUSED if "borrowing" in policy.paused else None


@dataclass(slots=True, eq=False)
class Holding:
    """One account in one pool: what it uses, and what the policy gives it there.

    ``unlent`` is the part of the quota that nobody else may take. ``due`` is its fair share (its weight
    divided by all weights), ``had`` its share of recent borrowing in the pool, and ``owed`` how far ``had``
    is below ``due``: 1 if it has borrowed nothing, 0 if just its fair share, below 0 if more. Using one's
    own quota is never held against anyone.

    ``use`` is GPUs in leases, ``promised`` GPUs that are promised to requests; both count.
    In a team with projects, ``whole`` is the team as one, by which it stands among the other teams, and
    the weights of its accounts are parts of the team's.
    """

    account: Account
    pool: str
    quota: int
    borrow_limit: int | None
    unlent: int
    due: float
    had: float
    owed: float = field(init=False)
    effective_weight: float
    use: int = 0
    promised: int = 0
    by_source: dict[str, int] = field(default_factory=dict)
    whole: Holding | None = None
    members: list[Holding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.owed = (self.due - self.had) / self.due

    @property
    def team(self) -> Holding:
        """Its team as one: itself, in a team without projects."""
        return self if self.whole is None else self.whole

    def __str__(self) -> str:
        """Its account; the rest of a team with projects is not taken for all of it."""
        is_rest = self.whole is not None and self.account.project is None
        return f"the rest of {self.account}" if is_rest else str(self.account)

    @property
    def siblings(self) -> list[Holding]:
        """The other accounts of its team."""
        if self.whole is None:
            return []
        return [other for other in self.whole.members if other is not self]

    @property
    def taken(self) -> int:
        """All that counts against its quota."""
        return self.use + self.promised

    @property
    def overage(self) -> int:
        """What it has beyond the quota."""
        return max(0, self.taken - self.quota)

    @property
    def share(self) -> float:
        """How far the recent borrowing of its team is below its fair share, between -1 and 1."""
        return min(max(self.team.owed, -1.0), 1.0)

    @property
    def held_back(self) -> int:
        """GPUs that are held back for it: what it does not lend, less what it already has."""
        return max(0, self.unlent - self.taken)

    @property
    def held_back_from_other_teams(self) -> int:
        """What other teams must leave to this team: by the team's own rule, or for its projects."""
        team = self.team
        return max(team.held_back, sum(member.held_back for member in team.members))

    @property
    def saturation(self) -> float:
        """How well its team is served above its quota: one GPU more, by its effective weight.

        One GPU for everybody, so that asking for more at once is no drawback.
        """
        return self.team.saturation_of(ONE_GPU)

    @property
    def inside(self) -> float:
        """How well it is served above its own quota, among the accounts of its team."""
        return 0.0 if self.whole is None else self.saturation_of(ONE_GPU)

    def saturation_of(self, more: int) -> float:
        """What it has beyond its quota, and so many more GPUs, by its effective weight."""
        return (self.overage + more) / ONE_GPU / self.effective_weight

    def class_of(self, gpus: int, urgent: bool, less: int = 0, team_less: int = 0) -> Class:
        """Urgent by its tier, else guaranteed if it is within its own or its team's quota, else borrowing.

        ``less`` of what it has, and ``team_less`` of what its team has, counts as gone: what was promised
        to the asker itself.
        """
        return Class.URGENT if urgent else self.covers(gpus, less, team_less)

    def covers(self, gpus: int, less: int = 0, team_less: int = 0) -> Class:
        """Whether so many more are within its own quota, within its team's as a whole, or borrowed.

        ``less`` of what it has, and ``team_less`` of what its team has, counts as gone.
        """
        if self.taken - less + gpus <= self.quota:
            return Class.GUARANTEED
        if self.whole is None:
            return Class.BORROWING
        covered = self.whole.covers(gpus, team_less)
        return Class.SHARED if covered is Class.GUARANTEED else covered

    def within_limits(self, gpus: int, class_: Class, less: int = 0, team_less: int = 0) -> bool:
        """Whether so many more keep what it, and its team, borrows within the limits."""
        if class_ <= Class.GUARANTEED:
            return True
        if self.whole is None:
            return self._within(gpus, less)
        inside = self._within(gpus, less)
        return inside and (class_ is Class.SHARED or self.whole._within(gpus, team_less))

    def limited_by(self, gpus: int) -> Holding:
        """Itself or its team: whose limit keeps it from borrowing so many more."""
        return self if self.whole is None or not self._within(gpus, 0) else self.whole

    def _within(self, gpus: int, less: int) -> bool:
        limit = self.borrow_limit
        return limit is None or self.taken - less + gpus - self.quota <= limit

    def allowed_class(self, gpus: int, rights: Rights) -> Class | None:
        """The class in which the rules let it have so many more, wherever they come from; or None."""
        class_ = self.class_of(gpus, rights.urgent)
        return class_ if self.allows(gpus, class_, rights) else None

    def allows(
        self, gpus: int, class_: Class, rights: Rights, less: int = 0, team_less: int = 0
    ) -> bool:
        """Whether the rules let it have so many more in a class, wherever they come from."""
        if class_ is Class.BORROWING and rights.barred:
            return False
        return self.within_limits(gpus, class_, less, team_less)

    def take(self, gpus: int, source: str | None) -> None:
        """Count GPUs that were granted to it."""
        self.use += gpus
        if source is not None:
            self.by_source[source] = self.by_source.get(source, 0) + gpus
        if self.whole is not None:
            self.whole.use += gpus

    def promise(self, gpus: int, of_team: int) -> None:
        """Count GPUs that are promised to it, minus those that its own, and its team's, victims will free."""
        self.promised += gpus
        if self.whole is not None:
            self.whole.promised += of_team
