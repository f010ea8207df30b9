"""What a person can do about a reason to wait: only what this run could do under this policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from dagster_gpufair.cli.output.text import sentence
from dagster_gpufair.gate.submission.tags import (
    CPUS,
    GPUS,
    GPUS_PER_NODE,
    MAX_DURATION,
    MEMORY_GIB,
    POOL,
)
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import ONE_GPU, format_gpus
from dagster_gpufair.scheduling.explaining.refusal import allowance, why_never
from dagster_gpufair.scheduling.explaining.remedies import Remedy
from dagster_gpufair.scheduling.model import Request


def next_step(
    policy: Policy,
    request: Request,
    pool: str,
    reason: str | None,
    *,
    now: float | None = None,
    remedies: Sequence[Remedy] | None = None,
) -> str:
    """A sentence for the end of what is said of a run that stands in line in ``pool``.

    ``reason`` is None if it starts at once. Without ``now`` it is judged by when it was submitted.
    ``remedies`` is what was found to start it now, None if nothing was tried.
    """
    tried = None if remedies is None else frozenset(remedy.change for remedy in remedies)
    run = _Run(policy, request, pool, request.submitted if now is None else now, tried)
    if reason in ("environment", "quota_exhausted") and not run.is_in_policy:
        return (
            "It starts once the policy has its team, tier and pool again. Otherwise cancel it and launch it "
            "with other tags: `gpufair policy show` says which names there are."
        )
    step = _STEPS.get(reason or "", "`gpufair queue` shows all runs that wait.")
    return step if isinstance(step, str) else step(run)


@dataclass(frozen=True)
class _Run:
    """A run that waits, and the changes of its tags that it could be launched again with.

    ``helpful`` are the kinds of change that would start it now, None if they are not known.
    """

    policy: Policy
    request: Request
    pool: str
    now: float
    helpful: frozenset[str] | None

    @property
    def is_in_policy(self) -> bool:
        """Whether the policy has its team, its tier and the pool that it waits in."""
        policy, request = self.policy, self.request
        named = ((request.team, policy.teams), (request.tier, policy.tiers))
        return self.pool in policy.pools and all(name in there for name, there in named)

    @property
    def fewer(self) -> str:
        """``gpufair/gpus: 4-8``; nothing if it takes no more than the least already."""
        least, part = self.request.sizes[-1], self.request.gpus_per_node or ONE_GPU
        if least <= part:
            return ""
        half = max(part, least // 2 // part * part)
        return f"{GPUS}: {format_gpus(half)}-{format_gpus(self.request.gpus)}"

    def at_most(self, gpus: int) -> str:
        """``gpufair/gpus: 2``, the most that is no more; nothing if it would be no run of this kind."""
        part = self.request.gpus_per_node or ONE_GPU
        most = gpus // part * part
        return f"{GPUS}: {format_gpus(most)}" if 0 < most < self.request.sizes[-1] else ""

    @property
    def less_a_node(self) -> str:
        """``gpufair/gpus_per_node: 4``, the largest split that is smaller; nothing if there is none."""
        nodes = self.policy.pools[self.pool].nodes if self.pool in self.policy.pools else None
        if not nodes:
            return ""
        least = self.request.sizes[-1]
        now = self.request.gpus_per_node or min(least, max(nodes.values()))
        for part in range((now - 1) // ONE_GPU * ONE_GPU, 0, -ONE_GPU):
            if self.request.gpus % part == 0 and least % part == 0:
                return f"{GPUS_PER_NODE}: {format_gpus(part)}"
        return ""

    @property
    def one_more_pool(self) -> str:
        """``gpufair/pool: h100,a100``, with the first further pool in which it could ever start."""
        for pool in self.policy.pools:
            other = replace(self.request, pools=(pool,), promised=None)
            if pool not in self.request.pools and why_never(self.policy, other) is None:
                known = [name for name in self.request.pools if name in self.policy.pools]
                return f"{POOL}: {sentence(','.join([*known, pool]))}"
        return ""

    @property
    def declares(self) -> list[str]:
        """The tags by which it counts towards ceilings of its team."""
        team = self.policy.teams.get(self.request.team)
        if team is None:
            return []
        limits, request = team.ceilings, self.request
        return [
            tag
            for tag, limit, declared in (
                (CPUS, limits.cpus, request.cpus),
                (MEMORY_GIB, limits.memory_gib, request.memory_gib),
                (self.fewer, limits.gpu_memory_gib, 1),
            )
            if tag and limit is not None and declared
        ]

    @property
    def has_windows(self) -> bool:
        """Whether GPUs of its pool are reserved for teams at certain times."""
        return any(window.pool == self.pool for window in self.policy.windows)

    @property
    def length_counts(self) -> bool:
        """Whether a shorter run could use GPUs that are reserved in its pool, and release them in time."""
        if self.helpful is not None:
            return "max_duration" in self.helpful
        lane = self.policy.fast_lane.get(self.pool)
        is_small = lane is not None and self.request.sizes[-1] <= lane.max_gpus
        return self.policy.backfill.enabled or self.has_windows or is_small


def _quota_exhausted(run: _Run) -> str:
    allowed = allowance(run.policy, run.request, run.pool, run.now)
    shows = "`gpufair teams` shows its quota."
    if allowed.at == run.now:
        return (
            "It starts once runs of its team end. To run more at once, the team needs a larger quota, a "
            f"grant, or permission to borrow: {shows}"
        )
    smaller = ("takes fewer GPUs", run.at_most(allowed.most))
    ways = _ways((smaller, ("names one more pool", run.one_more_pool)))
    instead = f" A run that {ways} may start sooner." if ways else ""
    if allowed.at is not None:
        return (
            "The quota of its team is too small for it until a grant or a window of the team begins."
            f"{instead} `gpufair policy show` says when that is."
        )
    return (
        f"The quota of its team is too small for it, whichever runs end.{instead} Without a change of its "
        f"tags it needs a larger quota, a grant, or permission to borrow: {shows}"
    )


def _borrow_limit(run: _Run) -> str:
    smaller = _once("runs of its team end", (("takes fewer GPUs", run.fewer),))
    return (
        f"{smaller}. To run more at once, the team needs a higher borrow_limit or a grant: `gpufair teams` "
        "shows its limits."
    )


def _ceiling(run: _Run) -> str:
    less = (("declares less", ", ".join(run.declares)),)
    return f"{_once('runs of its team end', less)}: `gpufair teams` shows the ceilings."


def _lower_priority(run: _Run) -> str:
    shorter = "a shorter" if run.request.max_duration else "a short enough"
    sooner = f", or sooner with {shorter} `{MAX_DURATION}`" if run.length_counts else ""
    return (
        f"It starts after the run that these GPUs are reserved for{sooner}: `gpufair queue` shows what is "
        "reserved for whom."
    )


def _maintenance(run: _Run) -> str:
    elsewhere = (("names one more pool", run.one_more_pool),)
    return (
        f"{_once('the nodes are back, or other GPUs are free', elsewhere)}: `gpufair pools` shows who took "
        "which node into maintenance, and why."
    )


def _insufficient_gpus(run: _Run) -> str:
    ways = (("names one more pool", run.one_more_pool), ("takes fewer GPUs", run.fewer))
    return f"{_sooner(ways, 'as many are free')}: `gpufair pools` shows what is free."


def _fragmented(run: _Run) -> str:
    ways = (
        ("takes fewer GPUs on each node", run.less_a_node),
        ("takes fewer GPUs", run.fewer),
        ("names one more pool", run.one_more_pool),
    )
    return f"{_sooner(ways, 'as many are free on its nodes')}: `gpufair pools` shows the nodes."


def _reserve_held(run: _Run) -> str:
    ways = (("takes fewer GPUs", run.fewer), ("names one more pool", run.one_more_pool))
    until = ", and until when a window lasts" if run.has_windows else ""
    return f"{_once('runs end', ways)}: `gpufair pools` shows what is held back{until}."


def _once(this: str, ways: Iterable[tuple[str, str]]) -> str:
    """When it starts with its tags, and with which others it may start sooner, if with any."""
    can = _ways(ways)
    return f"It starts once {this}" + (f"; a run that {can} may start sooner" if can else "")


def _sooner(ways: Iterable[tuple[str, str]], else_once: str) -> str:
    can = _ways(ways)
    return f"A run that {can} may start sooner" if can else f"It starts once {else_once}"


def _ways(ways: Iterable[tuple[str, str]]) -> str:
    """``takes fewer GPUs (gpufair/gpus: 4-8) or …``; those without a tag are no ways."""
    return " or ".join(f"{what} ({tag})" for what, tag in ways if tag)


_STEPS: dict[str, str | Callable[[_Run], str]] = {
    "quota_exhausted": _quota_exhausted,
    "borrow_limit": _borrow_limit,
    "ceiling": _ceiling,
    "lower_priority": _lower_priority,
    "maintenance": _maintenance,
    "insufficient_gpus": _insufficient_gpus,
    "fragmented": _fragmented,
    "reserve_held": _reserve_held,
    "preempting": "You need to do nothing: it starts once the runs that were given notice are stopped.",
    "paused": "It starts once the queue is resumed.",
    "approval": "It starts once a person approves that other runs are stopped for it.",
    "run_limit": "It starts once fewer runs are in progress, or with a higher limit in dagster.yaml.",
    "environment": "It starts once its code location can be loaded: Dagster's UI shows it under Deployment.",
}
