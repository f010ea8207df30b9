"""The policy file as typed values: what a platform team may write, with its defaults.

Field names are the file's keys. GPU amounts are thousandths (`quantities.Gpus`), durations are
``timedelta``. Rules that span several keys are in `checks`. The text under a field is what editors
show for it: `schema` puts it there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PrivateAttr,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from dagster_gpufair.policy.problems import shown
from dagster_gpufair.policy.quantities import Duration, Gpus, Moment

KINDS = ("experiment", "training", "evaluation", "batch_inference", "online_inference")

BorrowingMode = Literal["off", "auto"]
Mode = Literal["off", "approval", "auto"]
Pausable = Literal["preemption", "borrowing"]
ReclaimMode = Literal["off", "alert", "approval", "auto"]
Signal = Literal["SIGUSR1", "SIGUSR2", "SIGURG", "SIGHUP", "SIGINT", "SIGTERM"]

# Strict: YAML's `yes` must not become the number 1. Bounded: products of these stay finite.
_Number = Annotated[float, Field(strict=True)]
Points = Annotated[_Number, Field(ge=0, le=1_000_000)]
Weight = Annotated[_Number, Field(ge=0.001, le=1_000_000)]
Amount = Annotated[_Number, Field(ge=0, le=1_000_000_000)]


class _BareOff:
    """YAML 1.1 reads a bare ``off`` as false, YAML 1.2, as most editors do, as text: both are taken."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": [*handler(schema)["enum"], False]}

    @staticmethod
    def _read(value: Any) -> Any:
        return "off" if value is False else value


def _all_or_names(value: Any) -> Any:
    """One error instead of one for each side of the union."""
    if value == "all" or (isinstance(value, list) and all(isinstance(part, str) for part in value)):
        return value
    raise ValueError("must be all, or a list of names: [a, b]")


def _absolute(value: str) -> str:
    """Processes on several machines, each in a folder of its own, find the same place."""
    if not value.startswith("/") or "\0" in value:
        raise ValueError(f"must be an absolute path, such as /shared/gpufair, not {shown(value)}")
    return value


Folder = Annotated[
    str, AfterValidator(_absolute), WithJsonSchema({"type": "string", "pattern": "^/"})
]
AllOrNames = Annotated[Literal["all"] | list[str], BeforeValidator(_all_or_names)]


class _Section(BaseModel):
    """A group of keys. A key with nothing behind it (``quota:``) means its default."""

    model_config = ConfigDict(
        defer_build=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_the_default(cls, value: Any) -> Any:
        if value is None:
            return {}
        if isinstance(value, dict):
            return {key: part for key, part in value.items() if part is not None}
        return value


class Borrowing(_Section):
    """Whether idle GPUs move between teams, for how long, and for which work."""

    mode: Annotated[BorrowingMode, _BareOff()] = "auto"
    max_duration: Duration | None = None
    """How long GPUs may be borrowed while somebody waits for them; absent: as long as idle."""
    kinds: AllOrNames = "all"
    """The kinds of work that may borrow."""
    tiers: AllOrNames = "all"
    """The tiers that may borrow."""


class StopRules(_Section):
    """Whether running work may be stopped for more important work, for which, and how gently."""

    mode: Annotated[Mode, _BareOff()] = "off"
    askers: AllOrNames = "all"
    """The tiers for whose work other work may be stopped."""
    grace: Duration = Field(default="5m", validate_default=True)
    """Time between the notice and the stop, to save a checkpoint."""
    min_runtime: Duration = Field(default="10m", validate_default=True)
    """No run is stopped before it has run this long."""
    max_per_run: Annotated[int, Field(strict=True, ge=0, le=1000)] = 3
    """A run stopped this often is taken last."""
    rebalance: bool = False
    """Whether borrowers may be stopped for borrowers who have had less."""


class Preemption(StopRules):
    """The rules of preemption for all pools, and what is the same in all of them."""

    folder: Folder | None = None
    """Where runs find their notices and checkpoints, mounted at this path on every machine that runs them.
    Absent: gpufair in DAGSTER_HOME."""
    signal: Signal | None = None
    """A signal that tells a run of its notice. One that the code does not handle ends it; SIGURG does not."""
    keep_at_most: Duration = Field(default="1d", validate_default=True)
    """How long, from when that is said, the owner of a run may keep it from being stopped; 0: not at all."""


class Pool(_Section):
    """GPUs of one card type or purpose: named nodes with their GPUs, or just a number."""

    nodes: dict[str, Gpus] | None = None
    """GPUs of each node, {h1: 8, h2: 8}: runs are placed on nodes."""
    gpus: Gpus | None = None
    """How many GPUs, where it does not matter on which node they are."""
    gpu_memory_gib: Annotated[_Number, Field(gt=0, le=1_000_000)] | None = None
    """Memory of one GPU, in GiB."""
    price_per_gpu_hour: Amount = 0.0
    """What an hour of one GPU costs, in your currency; used by the cost reports."""
    borrowing: Borrowing | None = None
    """Keys of borrowing that differ in this pool."""
    preemption: StopRules | None = None
    """Keys of preemption that differ in this pool."""

    @property
    def capacity(self) -> int:
        """All its GPUs, in thousandths."""
        return sum(self.nodes.values()) if self.nodes is not None else self.gpus or 0


class Ceilings(_Section):
    """Limits on the sum of what a team's running requests declare."""

    cpus: Amount | None = None
    """CPU cores."""
    memory_gib: Amount | None = None
    """Memory, in GiB."""
    gpu_memory_gib: Amount | None = None
    """GPU memory, in GiB."""
    storage_gib: Amount | None = None
    """Storage, in GiB."""


class Project(_Section):
    """A key project's own part of its team's quota. Without a quota it is one with its team."""

    quota: dict[str, Gpus] = {}
    """GPUs per pool that the project is guaranteed, out of its team's quota."""
    borrow_limit: dict[str, Gpus] = {}
    """GPUs per pool above its quota, its team's included; unlimited where it is absent."""
    lend_limit: dict[str, Gpus] = {}
    """How much of its idle quota others may use; all where it is absent, 0 lends nothing."""
    weight: Weight = 1.0
    """Its share of the team's surplus; the rest of the team has a weight of 1."""


class Team(_Section):
    """One team's guarantees, limits and tiers, per pool."""

    code_locations: list[str] = []
    """Runs from these Dagster code locations are this team's, whatever their tags say."""
    quota: dict[str, Gpus] = {}
    """GPUs per pool that the team is guaranteed; 0 where it is absent."""
    borrow_limit: dict[str, Gpus] = {}
    """GPUs per pool above its quota; unlimited where it is absent, 0: it may not borrow."""
    lend_limit: dict[str, Gpus] = {}
    """How much of its idle quota others may use; all where it is absent, 0 lends nothing."""
    weight: Weight = 1.0
    """Its share of the surplus among those who want it."""
    tiers: list[str] = ["standard", "exploratory"]
    """The tiers that its runs may ask for."""
    borrowing: Borrowing | None = None
    """Keys of borrowing that differ for this team, whatever its pools say."""
    ceilings: Ceilings = Ceilings()
    projects: dict[str, Project] = {}
    """Key projects with a quota of their own inside the team's."""


class Tier(_Section):
    """One row of the tier table."""

    points: Points = 0
    """How much the tier counts in the order of the queue."""
    preemptible: Literal["never", "borrowed", "always"] = "borrowed"
    """Whether its running work may be stopped: never, on borrowed GPUs only, or always."""
    may_preempt: bool = False
    """Whether it may stop others' work even without a quota; needs preemptible: never."""
    start_within: Duration | None = None
    """The start time promised to this tier; nearing it raises a run. Absent: no promise."""


class Reclaim(_Section):
    """What happens to GPUs that are held and not used."""

    mode: Annotated[ReclaimMode, _BareOff()] = "alert"
    idle_below: Annotated[_Number, Field(ge=0, le=100)] = 5
    """A GPU that is used less than this counts as idle, in percent."""
    idle_for: Duration = Field(default="30m", validate_default=True)
    """How long it must be idle before anything happens."""


class Ordering(_Section):
    """How many points each reason to come first is worth."""

    wait_points_per_hour: Points = 100
    """For each hour of waiting."""
    share_points: Points = 500
    """At most, for a team that has recently borrowed less than its fair share; negative for more."""
    preempted_points: Points = 300
    """For each time it was stopped for others, up to three."""
    deadline_points: Points = 500
    """At most, as the start time promised to its tier comes near."""
    priority_points: Points = 10
    """For each step of the run's own `dagster/priority`, between -10 and 10."""
    source_points: Points = 200
    """Taken off at most, for work whose backfill, user or job holds the team's GPUs already."""


class FairShare(_Section):
    """How past borrowing counts: its half-life and how strongly it moves a team's weight."""

    half_life: Duration = Field(default="7d", validate_default=True)
    strength: Annotated[_Number, Field(ge=0, le=100)] = 1.0


class Backfill(_Section):
    """Whether other work may pass a reservation, and after how long a borrower gets one."""

    enabled: bool = True
    """Whether others may start where GPUs are reserved for a run, if that does not delay it."""
    reserve_after: Duration = Field(default="30m", validate_default=True)
    """How long a borrowing run waits before GPUs are reserved for it."""


class LedgerRules(_Section):
    """How much history the ledger keeps."""

    keep: Duration = Field(default="400d", validate_default=True)
    """How long a run is kept after its end; older ones are summed up by day."""


class FastLane(_Section):
    """GPUs of a pool for small, short runs only."""

    gpus: Gpus
    """How many GPUs the lane has."""
    max_gpus: Gpus
    """The largest request that may use them."""
    max_duration: Duration
    """The longest request that may use them."""


class Grant(_Section):
    """Extra quota for a time. The file's keys are ``from`` and ``until``."""

    team: str
    pool: str
    gpus: Gpus
    start: Moment = Field(alias="from")
    until: Moment
    approved_by: str
    reason: str
    project: str | None = None


class Window(_Section):
    """More quota for a team, lent to nobody: once from a start to an end, or by a cron schedule."""

    team: str
    pool: str
    gpus: Gpus
    start: Moment | None = Field(default=None, alias="from")
    until: Moment | None = None
    cron: str | None = None
    """When it starts each time, in UTC, in five fields: minute, hour, day, month, weekday."""
    duration: Duration | None = None
    """How long it lasts each time."""


DEFAULT_TIERS: dict[str, dict[str, Any]] = {
    "critical": {
        "points": 4000, "preemptible": "never", "may_preempt": True, "start_within": "5m",
    },
    "milestone": {"points": 3000, "preemptible": "borrowed", "start_within": "2h"},
    "standard": {"points": 2000, "preemptible": "borrowed", "start_within": "24h"},
    "exploratory": {"points": 1000, "preemptible": "always"},
}  # fmt: skip


class Policy(_Section):
    """The whole policy file."""

    version: Literal[1] = 1
    """The version of this format."""
    pools: dict[str, Pool]
    """The GPUs, one entry for each card type or purpose."""
    teams: dict[str, Team]
    """Who shares them."""
    tiers: dict[str, Tier] = Field(default_factory=dict, validate_default=True)
    """How important work is, laid over critical, milestone, standard and exploratory."""
    borrowing: Borrowing = Borrowing()
    preemption: Preemption = Preemption()
    reclaim: Reclaim = Reclaim()
    ordering: Ordering = Ordering()
    fair_share: FairShare = FairShare()
    backfill: Backfill = Backfill()
    ledger: LedgerRules = LedgerRules()
    fast_lane: dict[str, FastLane] = {}
    """For each pool, GPUs for small, short runs only."""
    grants: list[Grant] = []
    """Extra quotas for a time."""
    windows: list[Window] = []
    """Extra quotas at certain times, lent to nobody."""
    _paused: frozenset[Pausable] = PrivateAttr(default=frozenset())

    @property
    def paused(self) -> frozenset[Pausable]:
        """What a person has switched off for a time; the file does not say it."""
        return self._paused

    def while_paused(self, what: Iterable[Pausable]) -> Policy:
        """The same rules while this is switched off."""
        if self._paused == frozenset(what):
            return self
        copy = self.model_copy()
        copy._paused = frozenset(what)
        return copy

    def stop_rules(self, pool: str) -> StopRules:
        """The rules of preemption in a pool: its own keys, over those for all pools."""
        section = self.pools[pool].preemption if pool in self.pools else None
        return _laid_over(self.preemption, section)

    def borrowing_rules(self, team: str, pool: str) -> Borrowing:
        """The rules by which a team borrows in a pool: its own keys, over the pool's, over those for all."""
        of_pool = self.pools[pool].borrowing if pool in self.pools else None
        of_team = self.teams[team].borrowing if team in self.teams else None
        return _laid_over(self.borrowing, of_pool, of_team)

    def stops_for_others(self, pool: str) -> bool:
        """Whether running work may be stopped for other work in a pool now."""
        return self.stop_rules(pool).mode != "off" and "preemption" not in self._paused

    def stops_at_term(self, pool: str) -> bool:
        """Whether borrowed work may be stopped in a pool now because its borrowing time is over."""
        return "preemption" not in self._paused and any(
            self.borrowing_rules(team, pool).max_duration is not None for team in self.teams
        )

    def stops_work_in(self, pool: str) -> bool:
        """Whether anything that runs in a pool may be stopped by the daemon for other work."""
        return self.stops_for_others(pool) or self.stops_at_term(pool)

    @property
    def stops_work(self) -> bool:
        """Whether anything that runs may be stopped by the daemon for other work."""
        return any(self.stops_work_in(pool) for pool in self.pools)

    def grace(self, pool: str) -> float:
        """Seconds between a notice in a pool and the stop."""
        return self.stop_rules(pool).grace.total_seconds()

    @field_validator("tiers", mode="before")
    @classmethod
    def _over_the_default_tiers(cls, value: Any) -> Any:
        """A tier in the file changes that tier's keys, other defaults stay; ``null`` removes."""
        if not isinstance(value, dict):
            return value
        merged: dict[str, Any] = {name: dict(row) for name, row in DEFAULT_TIERS.items()}
        for name, row in value.items():
            if row is None:
                if name not in merged:
                    raise ValueError(f"'{name}' has nothing behind it; give it points")
                del merged[name]
            elif isinstance(row, dict):
                merged[name] = {**merged.get(name, {}), **row}
            else:
                merged[name] = row
        return merged


_S = TypeVar("_S", bound=_Section)


def _laid_over(rules: _S, *sections: _Section | None) -> _S:
    """The rules with the keys that sections name, the later before the earlier."""
    named = {
        key: getattr(section, key)
        for section in sections
        if section is not None
        for key in section.model_fields_set
    }
    return rules.model_copy(update=named) if named else rules
