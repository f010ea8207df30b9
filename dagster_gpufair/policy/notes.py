"""What a sound policy sets that does not act yet, or that is other than it seems."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dagster_gpufair.policy.models import Backfill, Policy, Reclaim, Team
from dagster_gpufair.policy.problems import Problem, dotted
from dagster_gpufair.policy.quantities import format_gpus


def notes_of(policy: Policy) -> list[Problem]:
    """What is worth knowing about a sound policy: above all, what it sets that does not act yet."""
    notes = [
        Problem(path, f"accepted, not acted on in this version: {message}", "note")
        for places, message in _NOT_YET
        for path in places(policy)
    ]
    for name, team in policy.teams.items():
        for pool, lent in team.lend_limit.items():
            if lent > team.quota.get(pool, 0):
                quota = format_gpus(team.quota.get(pool, 0))
                message = f"{format_gpus(lent)} is above the quota ({quota}): it lends all of that"
                notes.append(Problem(dotted("teams", name, "lend_limit", pool), message, "note"))
    return notes


def _when(path: str, is_set: Callable[[Policy], object]) -> Callable[[Policy], Iterable[str]]:
    return lambda policy: [path] if is_set(policy) else []


def _of_teams(key: str, is_set: Callable[[Team], object]) -> Callable[[Policy], Iterable[str]]:
    return lambda policy: [dotted("teams", n, key) for n, t in policy.teams.items() if is_set(t)]


# One row for each setting that is read and checked and does nothing else so far.
_NOT_YET: tuple[tuple[Callable[[Policy], Iterable[str]], str], ...] = (
    (
        _of_teams(
            "projects", lambda team: any(any(p.quota.values()) for p in team.projects.values())
        ),
        "projects share their team's quota as they come",
    ),
    (
        _of_teams("ceilings", lambda team: team.ceilings.model_dump(exclude_none=True)),
        "only GPUs are limited",
    ),
    (
        _when("borrowing.max_duration", lambda policy: policy.borrowing.max_duration is not None),
        "GPUs are borrowed until the run ends",
    ),
    (
        _when("preemption.mode", lambda policy: policy.preemption.mode != "off"),
        "it counts as off, and no running work is stopped",
    ),
    (
        _when("reclaim", lambda policy: policy.reclaim != Reclaim()),
        "nothing watches for idle GPUs",
    ),
    (
        _when("backfill", lambda policy: policy.backfill != Backfill()),
        "no GPUs are kept for a request that waits for many, and smaller ones pass it",
    ),
    (_when("fast_lane", lambda policy: policy.fast_lane), "no GPUs are kept for small requests"),
    (_when("grants", lambda policy: policy.grants), "quotas stay as they are"),
    (_when("windows", lambda policy: policy.windows), "nothing is held for them"),
)
