"""Whether a submitted run becomes a request: whose it is, what it may ask, or why it is refused.

Pure over the policy and the facts of the run, so that the coordinator (at submission) and the daemon
(for runs that were queued without it) decide alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dagster_gpufair.gate.dagster_internals import (
    BACKFILL_ID_TAG,
    PRIORITY_TAG,
    SCHEDULE_NAME_TAG,
    SENSOR_NAME_TAG,
    USER_TAG,
)
from dagster_gpufair.gate.submission.tags import POOL, TEAM, TIER, InvalidAsk, parse_ask
from dagster_gpufair.policy.models import Policy, Team
from dagster_gpufair.policy.problems import listed, shown, unknown
from dagster_gpufair.scheduling.explaining.refusal import why_invalid, why_never
from dagster_gpufair.scheduling.model import Request

DEFAULT_TIER = "standard"


@dataclass(frozen=True)
class Submission:
    """The facts of a run that admission looks at. ``at`` in seconds since the epoch."""

    run_id: str
    job_name: str
    location: str | None
    tags: Mapping[str, str]
    at: float


@dataclass(frozen=True)
class Refusal:
    """Why a run cannot ever start, by one of the closed list of codes, in a sentence with the mend."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"dagster-gpufair refused this run: {self.message}"


class _Refused(Exception):
    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.refusal = Refusal(code, message)


def admit(policy: Policy, submission: Submission) -> Request | Refusal:
    """The request that a run makes under a policy, or why it makes none."""
    try:
        ask = parse_ask(submission.tags)
        team = _team(policy, submission.location, ask.team)
        rules = policy.teams[team]
        request = Request(
            id=submission.run_id,
            team=team,
            project=ask.project,
            tier=_tier(policy, rules, team, ask.tier),
            kind=ask.kind,
            pools=ask.pools or _only_pool(policy, rules, team),
            gpus=ask.gpus,
            min_gpus=ask.min_gpus,
            gpus_per_node=ask.gpus_per_node,
            submitted=submission.at,
            max_duration=ask.max_duration.total_seconds() if ask.max_duration else None,
            source=source_of(submission),
            cpus=ask.cpus,
            memory_gib=ask.memory_gib,
            priority=priority_of(submission.tags),
        )
    except InvalidAsk as error:
        return Refusal("invalid_request", str(error))
    except _Refused as refused:
        return refused.refusal
    for pool in request.pools:
        if pool not in policy.pools:
            return Refusal("unknown_pool", f"{unknown('pool', pool, policy.pools)}.")
    invalid = why_invalid(policy, request)
    if invalid is not None:
        return Refusal("invalid_request", invalid)
    never = why_never(policy, request)
    return Refusal(*never) if never else request


def priority_of(tags: Mapping[str, str]) -> int:
    """What a run says of itself; 0 where that is no number, as in Dagster's own queue."""
    try:
        return int(tags.get(PRIORITY_TAG, "0"))
    except ValueError:
        return 0


def source_of(submission: Submission) -> str:
    """What a team's runs are told apart by: a backfill, else a person, else the job."""
    tags = submission.tags
    return tags.get(BACKFILL_ID_TAG) or tags.get(USER_TAG) or submission.job_name


def launched_by(submission: Submission) -> dict[str, str]:
    """What launched a run, for people: ``what`` and its ``name``, and the ``user`` where one is named."""
    tags = submission.tags
    user = {"user": tags[USER_TAG]} if USER_TAG in tags else {}
    for what, tag in (
        ("backfill", BACKFILL_ID_TAG),
        ("schedule", SCHEDULE_NAME_TAG),
        ("sensor", SENSOR_NAME_TAG),
        ("user", USER_TAG),
    ):
        if tag in tags:
            return {"what": what, "name": tags[tag], **user}
    return {"what": "job", "name": submission.job_name}


def owner_of(policy: Policy, location: str | None) -> str | None:
    """The team to which the policy maps a code location, if to any."""
    owners = (name for name, team in policy.teams.items() if location in team.code_locations)
    return next(owners, None)


def _team(policy: Policy, location: str | None, claimed: str | None) -> str:
    """The team that owns the code location; where the policy maps none, the one the tag names."""
    owner = owner_of(policy, location)
    if owner is not None:
        if claimed is not None and claimed != owner:
            raise _Refused(
                "invalid_request",
                f"the tag {TEAM} claims team {shown(claimed)}, but code location {shown(location or '')} "
                f"belongs to team '{owner}'. Remove the tag, or run the job from a code location of "
                f"team {shown(claimed)}.",
            )
        return owner
    where = "its code location" if location is None else f"the code location {shown(location)}"
    if claimed is None:
        raise _Refused(
            "unknown_team",
            f"it names no team (known: {listed(policy.teams)}). {_team_mend(policy, where)}",
        )
    if claimed not in policy.teams:
        raise _Refused(
            "unknown_team",
            f"{unknown('team', claimed, policy.teams)}. {_team_mend(policy, where)}",
        )
    if policy.teams[claimed].code_locations:
        raise _Refused(
            "invalid_request",
            f"the tag {TEAM} claims team '{claimed}', whose runs come from the code locations "
            f"{listed(policy.teams[claimed].code_locations)}, and this job is from {where}. Run it "
            f"from there, or let the platform team add {where} to teams.{claimed}.code_locations.",
        )
    return claimed


def _team_mend(policy: Policy, where: str) -> str:
    """What gives a run from there a team: a team with code locations takes runs from no others."""
    by_tag = [name for name, team in policy.teams.items() if not team.code_locations]
    listing = f"let the platform team add {where} to a team's code_locations in the policy."
    if not by_tag:
        return f"Every team takes runs from its own code locations only: {listing}"
    only = "" if len(by_tag) == len(policy.teams) else f" to one of {listed(by_tag)}"
    return f"Set the tag {TEAM}{only}, or {listing}"


def _tier(policy: Policy, rules: Team, team: str, claimed: str | None) -> str:
    allowed = [tier for tier in rules.tiers if tier in policy.tiers]
    if claimed is None:
        if DEFAULT_TIER in allowed:
            return DEFAULT_TIER
        return min(allowed, key=lambda tier: policy.tiers[tier].points)
    if claimed not in allowed:
        problem = (
            f"tier '{claimed}' is not given to team '{team}', which has {listed(allowed)}"
            if claimed in policy.tiers
            else unknown("tier", claimed, allowed)
        )
        raise _Refused(
            "tier_not_allowed",
            f"{problem}. Change the tag {TIER}, or ask the platform team for the tier "
            f"(teams.{team}.tiers).",
        )
    return claimed


def _only_pool(policy: Policy, rules: Team, team: str) -> tuple[str, ...]:
    """Where a run that names no pool goes: the only one there is, or the only one its team has quota in."""
    for pools in (list(policy.pools), [pool for pool, quota in rules.quota.items() if quota]):
        if len(pools) == 1:
            return (pools[0],)
    raise _Refused(
        "unknown_pool",
        f"it names no pool, and team '{team}' could use several. Set the tag {POOL} to one of "
        f"{listed(policy.pools)}.",
    )
