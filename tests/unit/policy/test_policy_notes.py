"""What a platform team sets in good faith and is other than it seems is said plainly."""

from __future__ import annotations

from datetime import datetime

import pytest

from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.policy.notes import notes_of, unknown_locations

IN_MAY = datetime.fromisoformat("2026-05-10T00:00:00+00:00").timestamp()
DAY = 86400.0


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("reclaim: {mode: auto}", "reclaim", "nothing watches for idle GPUs"),
        ("reclaim: {mode: off}", "reclaim", "nothing watches for idle GPUs"),
        ("reclaim: {idle_for: 1h}", "reclaim", "nothing watches for idle GPUs"),
        (
            "teams: {nlp: {ceilings: {storage_gib: 64, cpus: 8}}}",
            "teams.nlp.ceilings.storage_gib",
            "runs do not declare their storage",
        ),
    ],
)
def test_a_setting_that_does_not_act_yet_is_noted_and_stops_nothing(
    text, path, message, with_pools
):
    [note] = notes_of(parse_policy(with_pools(text)))
    assert note.path == path
    assert note.severity == "note"
    assert note.message.startswith("has no effect in this version: ")
    assert message in note.message


@pytest.mark.parametrize(
    "text",
    [
        "backfill: {enabled: false, reserve_after: 2h}",
        "fast_lane: {t4: {gpus: 2, max_gpus: 1, max_duration: 30m}}",
        "teams: {nlp: {quota: {h100: 8}, projects: {a: {quota: {h100: 4}, lend_limit: {h100: 2}}}}}",
        "teams: {nlp: {ceilings: {cpus: 64, memory_gib: 512}}}",
        "windows: [{team: nlp, pool: t4, gpus: 1, cron: 0 1 * * *, duration: 1h}]",
        "preemption: {mode: auto, grace: 2m}",
        "borrowing: {max_duration: 2h}",
    ],
)
def test_what_acts_is_not_noted(text, with_pools):
    assert notes_of(parse_policy(with_pools(text)), IN_MAY) == []


def test_defaults_that_are_written_out_are_not_noted(with_pools):
    text = """
teams: {nlp: {quota: {h100: 8}, lend_limit: {h100: 8}, projects: {a: {}}, ceilings: {}}}
preemption: {mode: off, grace: 2m}
reclaim: {mode: alert, idle_below: 5, idle_for: 30m}
borrowing: {mode: auto, max_duration: null, kinds: all}
backfill: {enabled: true, reserve_after: 30m}
fast_lane: {}
grants: []
windows: []
"""
    assert notes_of(parse_policy(with_pools(text))) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "borrowing: {mode: off}\nteams: {nlp: {}}",
            "can run nothing so far: it has no quota, and borrowing is off; give it a quota, or set "
            "borrowing.mode: auto",
        ),
        (
            "borrowing: {tiers: [milestone]}\nteams: {nlp: {}}",
            "can run nothing so far: it has no quota, and none of its tiers may borrow; give it a quota, or "
            "add one of its tiers to borrowing.tiers",
        ),
        (
            "teams: {nlp: {borrow_limit: {h100: 0, t4: 0}}}",
            "can run nothing so far: it has no quota, and its borrow_limit is 0 in every pool; give it "
            "a quota, or raise that limit",
        ),
    ],
)
def test_a_team_that_can_run_nothing(text, message, with_pools):
    [note] = notes_of(parse_policy(with_pools(text)))
    assert (note.path, note.message) == ("teams.nlp", message)


@pytest.mark.parametrize(
    "text",
    [
        "teams: {nlp: {}}",
        "teams: {nlp: {borrow_limit: {h100: 0}}}",
        # An emergency team needs neither quota nor borrowing.
        "borrowing: {mode: off}\nteams: {ops: {tiers: [critical]}}",
        # It has GPUs at times.
        "borrowing: {mode: off}\nteams: {nlp: {}}\n"
        "windows: [{team: nlp, pool: h100, gpus: 8, cron: 0 20 * * *, duration: 8h}]",
        "borrowing: {mode: off}\nteams: {nlp: {}}\n"
        "grants: [{team: nlp, pool: h100, gpus: 2, from: 2026-06-01T00:00:00Z, "
        "until: 2026-06-15T00:00:00Z, approved_by: ana, reason: demo}]",
    ],
)
def test_a_team_that_lives_without_a_quota(text, with_pools):
    assert notes_of(parse_policy(with_pools(text)), IN_MAY) == []


def test_lending_more_than_there_is_means_lending_all(with_pools):
    text = """
teams:
  nlp:
    quota: {h100: 4}
    lend_limit: {h100: 8}
    projects: {a: {quota: {h100: 2}, lend_limit: {h100: 3}}}
"""
    assert [(note.path, note.message) for note in notes_of(parse_policy(with_pools(text)))] == [
        ("teams.nlp.lend_limit.h100", "is 8, above the quota of 4: all of the quota may be lent"),
        (
            "teams.nlp.projects.a.lend_limit.h100",
            "is 3, above the quota of 2: all of the quota may be lent",
        ),
    ]


def test_limits_of_a_project_without_a_quota_limit_nothing(with_pools):
    text = """
teams:
  nlp:
    quota: {h100: 4, t4: 4}
    projects: {a: {quota: {h100: 2}, borrow_limit: {h100: 0, t4: 0}}, b: {lend_limit: {h100: 0}}}
"""
    assert [(note.path, note.message) for note in notes_of(parse_policy(with_pools(text)))] == [
        (path, "limits nothing: the project has no quota there, so its runs count as its team's")
        for path in ("teams.nlp.projects.a.borrow_limit.t4", "teams.nlp.projects.b.lend_limit.h100")
    ]


def test_limits_that_a_grant_gives_something_to_limit_count(with_pools):
    text = """
teams:
  nlp:
    quota: {h100: 4}
    lend_limit: {h100: 5}
    projects: {a: {borrow_limit: {h100: 0}, lend_limit: {h100: 1}}}
grants:
  - {team: nlp, project: a, pool: h100, gpus: 2, from: 2026-06-01T00:00:00Z,
     until: 2026-06-15T00:00:00Z, approved_by: ana, reason: demo}
"""
    assert notes_of(parse_policy(with_pools(text)), IN_MAY) == []


def test_gpus_whose_memory_nobody_wrote_down_count_for_no_ceiling():
    text = """
pools: {{h100: {{gpus: 8, gpu_memory_gib: 80}}, a100: {{gpus: 8}}, t4: {{gpus: 8}}}}
teams: {{nlp: {{quota: {{h100: 8}}, {limit}ceilings: {{gpu_memory_gib: 320}}}}}}
"""
    [note] = notes_of(parse_policy(text.format(limit="borrow_limit: {a100: 0}, ")))
    assert note.path == "teams.nlp.ceilings.gpu_memory_gib"
    assert note.message == "counts no GPUs of t4: write the pool's gpu_memory_gib"
    # What it may not use need not be counted.
    assert notes_of(parse_policy(text.format(limit="borrow_limit: {a100: 0, t4: 0}, "))) == []


def test_a_fast_lane_in_what_quotas_have_promised(with_pools):
    text = "fast_lane: {h100: {gpus: 10, max_gpus: 1, max_duration: 30m}}"
    [note] = notes_of(parse_policy(with_pools(text)))
    assert note.path == "fast_lane.h100.gpus"
    assert note.message == (
        "the lane of 10 and quotas of 8 are 18 GPUs together, and the pool has 16: 2 of the quotas serve "
        "small, short runs only"
    )


def test_a_fast_lane_in_what_a_window_has_promised(with_pools):
    """Its team could not use the window for a larger run, though the quotas leave enough."""
    window = "windows: [{team: nlp, pool: h100, gpus: 7, cron: 0 20 * * *, duration: 8h}]\n"
    lane = "fast_lane: {h100: {gpus: %s, max_gpus: 1, max_duration: 30m}}"
    [note] = notes_of(parse_policy(with_pools(window + lane % 4)), IN_MAY)
    assert note.path == "fast_lane.h100.gpus"
    assert note.message == (
        "the lane of 4 and quotas, grants and windows of 15 at 2026-05-10 00:00 UTC (windows[0]) are 19 "
        "GPUs together, and the pool has 16: 3 of these serve small, short runs only"
    )
    assert notes_of(parse_policy(with_pools(window + lane % 1)), IN_MAY) == []


def grant(start: str, until: str, gpus: int, project: str = "") -> str:
    inside = f", project: {project}" if project else ""
    return (
        f"{{team: nlp{inside}, pool: h100, gpus: {gpus}, from: 2026-{start}T00:00:00Z, "
        f"until: 2026-{until}T00:00:00Z, approved_by: ana, reason: paper}}"
    )


# Of the 16 GPUs of h100, 8 are nlp's quota.
@pytest.mark.parametrize(
    ("text", "path", "moment", "gpus"),
    [
        (f"grants: [{grant('06-01', '06-15', 9)}]", "grants[0]", "2026-06-01 00:00", 17),
        # In force already.
        (f"grants: [{grant('05-01', '06-15', 9)}]", "grants[0]", "2026-05-10 00:00", 17),
        (
            f"grants: [{grant('06-10', '06-20', 5)}, {grant('06-01', '06-15', 5)}]",
            "grants[0]",
            "2026-06-10 00:00",
            18,
        ),
        # A project's grant is added to its team's quota.
        (
            f"teams: {{nlp: {{quota: {{h100: 8}}, projects: {{a: {{}}}}}}}}\n"
            f"grants: [{grant('06-01', '06-15', 5)}, {grant('06-02', '06-15', 5, 'a')}]",
            "grants[1]",
            "2026-06-02 00:00",
            18,
        ),
        # The 1st of a month that is a Monday.
        (
            "windows: [{team: nlp, pool: h100, gpus: 5, cron: 0 20 1 * *, duration: 1h},"
            " {team: nlp, pool: h100, gpus: 5, cron: 30 20 * * 1, duration: 1h}]",
            "windows[1]",
            "2026-06-01 20:30",
            18,
        ),
        # A grant far away, and the first window in its time.
        (
            f"grants: [{grant('11-03', '11-10', 4)}]\n"
            "windows: [{team: nlp, pool: h100, gpus: 5, cron: 0 20 * * 6, duration: 1h}]",
            "windows[0]",
            "2026-11-07 20:00",
            17,
        ),
        # A window that goes on and on.
        (
            f"grants: [{grant('06-01', '06-02', 4)}]\n"
            "windows: [{team: nlp, pool: h100, gpus: 5, cron: '*/5 * * * *', duration: 1h}]",
            "grants[0]",
            "2026-06-01 00:00",
            17,
        ),
    ],
)
def test_more_promised_at_once_than_the_pool_has(text, path, moment, gpus, with_pools):
    [note] = notes_of(parse_policy(with_pools(text)), IN_MAY)
    assert note.path == path
    assert note.message == (
        f"at {moment} UTC, quotas, grants and windows of h100 are {gpus} together, and the pool has "
        "16: not all of them can be used at once"
    )


@pytest.mark.parametrize(
    "text",
    [
        f"grants: [{grant('06-01', '06-15', 8)}]",
        # One ends as the next begins.
        f"grants: [{grant('06-01', '06-15', 8)}, {grant('06-15', '06-20', 8)}]",
        # It is over.
        f"grants: [{grant('04-01', '05-10', 9)}]",
        # Never at the same time.
        "windows: [{team: nlp, pool: h100, gpus: 5, cron: 0 20 * * *, duration: 1h},"
        " {team: nlp, pool: h100, gpus: 5, cron: 0 21 * * *, duration: 1h}]",
        f"grants: [{grant('11-03', '11-06', 4)}]\n"
        "windows: [{team: nlp, pool: h100, gpus: 5, cron: 0 20 * * 6, duration: 1h}]",
        # It overlaps with itself, and is there once.
        "windows: [{team: nlp, pool: h100, gpus: 8, cron: 0 * * * *, duration: 5h}]",
    ],
)
def test_what_can_all_be_had_at_once(text, with_pools):
    assert notes_of(parse_policy(with_pools(text)), IN_MAY) == []


def test_an_overlap_is_looked_for_from_the_present_on(with_pools):
    long_ago = f"grants: [{grant('01-01', '01-02', 9).replace('2026', '2020')}]"
    assert notes_of(parse_policy(with_pools(long_ago))) == []
    assert notes_of(parse_policy(with_pools(long_ago)), IN_MAY - 7 * 366 * DAY)


TWO_TEAMS = "teams: {nlp: {code_locations: [nlp, nlpp]}, vision: {code_locations: [cv]}}"


@pytest.mark.parametrize(
    ("in_workspace", "seen", "says"),
    [
        # Nobody knows any location, so nothing can be said.
        (None, [], []),
        ([], [], []),
        (
            ["nlp", "cv"],
            [],
            [
                "'nlpp' may be misspelt: it is not in the workspace, and no GPU run has come from it "
                "yet; did you mean 'nlp'? (known: cv, nlp)"
            ],
        ),
        # From another workspace of the same instance.
        (["nlp", "cv"], ["nlpp"], []),
        (
            None,
            ["nlp", "nlpp"],
            ["'cv' may be misspelt: no GPU run has come from it yet (known: nlp, nlpp)"],
        ),
    ],
    ids=["nothing known", "no workspace", "misspelt", "seen", "only seen"],
)
def test_a_code_location_that_nobody_has(in_workspace, seen, says, with_pools):
    policy = parse_policy(with_pools(TWO_TEAMS))
    notes = unknown_locations(policy, in_workspace, seen)
    assert [note.message for note in notes] == says
    assert all(note.path.endswith(".code_locations") for note in notes)
    assert all(note.severity == "note" for note in notes)
