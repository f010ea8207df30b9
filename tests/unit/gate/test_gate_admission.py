"""Whose a run is, what it may ask for, and why it is refused."""

from __future__ import annotations

import pytest

from dagster_gpufair.gate.submission.admission import Refusal, Submission, admit
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.scheduling.model import Request

POLICY = parse_policy("""
pools: {a100: {nodes: {n1: 8, n2: 8}}, t4: {gpus: 4}}
teams:
  red: {quota: {a100: 4, t4: 2}, borrow_limit: {a100: 4}, ceilings: {cpus: 64, memory_gib: 512},
    projects: {lab: {}}}
  blue: {quota: {a100: 4}, tiers: [milestone, exploratory], projects: {search: {quota: {a100: 1}}}}
  owners: {code_locations: [theirs, also_theirs], quota: {t4: 1}}
""")
OWNED = parse_policy("""
pools: {t4: {gpus: 4}}
teams: {red: {code_locations: [reds]}, blue: {code_locations: [blues]}}
""")
MANY = parse_policy(
    "pools: {t4: {gpus: 4}}\nteams:\n"
    + "".join(f"  team{number}: {{quota: {{t4: 0}}}}\n" for number in range(200))
)


def submitted(location: str | None = "jobs", **tags: object) -> Submission:
    """A run of team red for one T4, unless its tags say something else."""
    given = {"team": "red", "pool": "t4", "gpus": 1, **tags}
    written = {f"gpufair/{key}": str(value) for key, value in given.items() if value is not None}
    return Submission("run", "train", location, written, at=1000.0)


def request_of(submission: Submission) -> Request:
    request = admit(POLICY, submission)
    assert isinstance(request, Request), request
    return request


def test_a_request_says_all_that_the_decision_needs() -> None:
    asked = submitted(
        gpus="2-4", kind="training", project="lab", max_duration="1h", cpus=16, memory_gib=64.5
    )

    assert request_of(asked) == Request(
        id="run",
        team="red",
        project="lab",
        tier="standard",
        kind="training",
        pools=("t4",),
        gpus=4000,
        min_gpus=2000,
        submitted=1000.0,
        max_duration=3600.0,
        source="train",
        cpus=16.0,
        memory_gib=64.5,
    )


def test_a_code_location_says_whose_its_runs_are() -> None:
    assert request_of(submitted("theirs", team=None)).team == "owners"
    assert request_of(submitted("theirs", team="owners")).team == "owners"
    assert request_of(submitted("jobs", team="red")).team == "red"
    assert request_of(submitted(None, team="red")).team == "red"


def test_the_tier_is_the_standard_one_or_the_teams_least() -> None:
    assert request_of(submitted()).tier == "standard"
    assert request_of(submitted(team="blue", pool="a100")).tier == "exploratory"
    assert request_of(submitted(team="blue", pool="a100", tier="milestone")).tier == "milestone"


def test_the_only_pool_that_it_can_mean_need_not_be_said() -> None:
    assert request_of(submitted(team="blue", pool=None)).pools == ("a100",)


@pytest.mark.parametrize(
    ("tags", "source"),
    [
        ({}, "train"),
        ({"user": "ann"}, "ann"),
        ({"user": "ann", "dagster/backfill": "b1"}, "b1"),
    ],
)
def test_a_source_is_a_backfill_else_a_person_else_the_job(
    tags: dict[str, str], source: str
) -> None:
    asked = submitted()

    run = Submission("run", "train", "jobs", {**asked.tags, **tags}, at=1000.0)
    assert request_of(run).source == source


@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        (submitted(team=None), "unknown_team", "it names no team (known: red, blue, owners)"),
        (submitted(team="rde"), "unknown_team", "unknown team 'rde'; did you mean 'red'?"),
        (submitted(pool="t5"), "unknown_pool", "unknown pool 't5' (known: a100, t4)"),
        (submitted(pool="t4,t5"), "unknown_pool", "unknown pool 't5'"),
        (
            submitted(pool=None),
            "unknown_pool",
            "could use several. Set the tag gpufair/pool to one",
        ),
        (submitted(tier="urgent"), "tier_not_allowed", "unknown tier 'urgent' (known: standard, "),
        (
            submitted(tier="milestone"),
            "tier_not_allowed",
            "which has standard, exploratory. Change",
        ),
        (submitted(tier="critical"), "tier_not_allowed", "ask the platform team for the tier"),
        (submitted(gpus="many"), "invalid_request", "no number of GPUs"),
        (submitted(cpus="many"), "invalid_request", "gpufair/cpus is 'many', which is no number"),
        (submitted(gpus=5), "exceeds_pool", "it asks for 5 t4, and t4 has 4 GPUs in all"),
        (submitted(pool="a100", gpus=17), "exceeds_pool", "a100 has 16 GPUs in all"),
        (submitted(pool="a100", gpus=9), "exceeds_limits", "a quota of 4 and a borrow limit of 4"),
        (submitted(cpus=65), "exceeds_limits", "red has a ceiling of 64 CPUs: this run needs 65"),
        (submitted(memory_gib=512.5), "exceeds_limits", "red has a ceiling of 512 GiB of memory"),
        (
            submitted(team="blue", pool="a100", gpus=16, gpus_per_node=16),
            "no_matching_device",
            "a100 has 2 nodes of 8",
        ),
        (
            submitted("theirs", team="red"),
            "invalid_request",
            "claims team 'red', but code location 'theirs' belongs to team 'owners'",
        ),
        (
            submitted(team="owners"),
            "invalid_request",
            "come from the code locations theirs, also_theirs, and this job is from the code",
        ),
        (
            submitted(team="blue", pool="a100", project="serach"),
            "invalid_request",
            "unknown project of team blue 'serach'; did you mean 'search'?",
        ),
        (
            submitted("theirs", team=None, project="pretrain"),
            "invalid_request",
            "team owners has no projects, and the run names 'pretrain'. Leave the project out, or ask the",
        ),
    ],
)
def test_a_refusal_says_what_is_wrong_and_what_is_allowed(
    asked: Submission, code: str, says: str
) -> None:
    refusal = admit(POLICY, asked)

    assert isinstance(refusal, Refusal)
    assert refusal.code == code
    assert says in refusal.message
    assert str(refusal).startswith("dagster-gpufair refused this run: ")


@pytest.mark.parametrize("team", [None, "rde"])
def test_a_tag_is_named_only_if_it_would_give_the_run_a_team(team: str | None) -> None:
    """A team with code locations takes runs from no others."""
    some, none = (admit(policy, submitted(team=team)) for policy in (POLICY, OWNED))

    assert isinstance(some, Refusal) and isinstance(none, Refusal)
    assert some.message.endswith(
        ". Set the tag gpufair/team to one of red, blue, or let the platform team add the code location "
        "'jobs' to a team's code_locations in the policy."
    )
    assert none.code == "unknown_team"
    assert none.message.endswith(
        ". Every team takes runs from its own code locations only: let the platform team add the code "
        "location 'jobs' to a team's code_locations in the policy."
    )
    anywhere = admit(MANY, submitted(team=team))
    assert isinstance(anywhere, Refusal)
    assert ". Set the tag gpufair/team, or let the platform team add" in anywhere.message


@pytest.mark.parametrize("team", [None, "team", "x" * 63])
def test_a_refusal_is_short_also_where_there_are_many_teams(team: str | None) -> None:
    refusal = admit(MANY, submitted(location="x" * 10_000, team=team))

    assert isinstance(refusal, Refusal)
    assert len(refusal.message) < 500
    assert "and 188 more" in refusal.message
