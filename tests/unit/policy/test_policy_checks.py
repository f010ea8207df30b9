"""Policies whose keys are right one by one and cannot be together."""

from __future__ import annotations

import pytest

from dagster_gpufair.policy.checks import problems_of
from dagster_gpufair.policy.loading import parse_policy

CONTRADICTIONS = [
    # pools
    ("pools: {}\nteams: {nlp: {}}", "pools", "needs at least one pool"),
    ("pools: {a: {}}\nteams: {nlp: {}}", "pools.a", "has no GPUs; give it nodes"),
    ("pools: {a: }\nteams: {nlp: {}}", "pools.a", "has no GPUs; give it nodes"),
    ("pools: {a: {gpus: 0}}\nteams: {nlp: {}}", "pools.a", "has 0 GPUs"),
    ("pools: {a: {nodes: {}}}\nteams: {nlp: {}}", "pools.a", "has 0 GPUs"),
    ("pools: {a: {gpus: 8, nodes: {n: 8}}}\nteams: {nlp: {}}", "pools.a", "delete gpus"),
    (
        "pools: {a: {nodes: {n: 7.5}}}\nteams: {nlp: {}}",
        "pools.a.nodes.n",
        "is 7.5, and a node has whole GPUs",
    ),
    # names
    ("teams: {nlp/a: {quota: {t4: 1}}}", "teams.nlp/a", "is not a valid name"),
    ("teams: {'nlp,a': {quota: {t4: 1}}}", "teams.nlp,a", "is not a valid name"),
    ("teams: {'my team': {quota: {t4: 1}}}", "teams.'my team'", "is not a valid name"),
    ("teams: {'': {quota: {t4: 1}}}", "teams.''", "is not a valid name"),
    (f"teams: {{{'n' * 64}: {{}}}}", f"teams.'{'n' * 50}", "is not a valid name"),
    ("teams: {nlp: {projects: {'a b': {}}}}", "teams.nlp.projects.'a b'", "is not a valid name"),
    ("tiers: {'top,most': {points: 1}}", "tiers.top,most", "is not a valid name"),
    ("pools: {a: {nodes: {n/1: 8}}}\nteams: {nlp: {}}", "pools.a.nodes.n/1", "is not a valid name"),
    # teams
    ("teams: {}", "teams", "needs at least one team"),
    ("teams: {nlp: {tiers: []}}", "teams.nlp.tiers", "is empty; list the team's tiers"),
    ("teams: {nlp: {tiers: [gold]}}", "teams.nlp.tiers", "unknown tier 'gold' (known: critical,"),
    ("tiers: {exploratory: }", "teams.nlp.tiers", "it is there by default, so list the team's"),
    ("teams: {nlp: {quota: {H100: 8}}}", "teams.nlp.quota.H100", "did you mean 'h100'?"),
    ("teams: {nlp: {borrow_limit: {a: 8}}}", "teams.nlp.borrow_limit.a", "(known: h100, t4)"),
    ("teams: {nlp: {lend_limit: {a: 8}}}", "teams.nlp.lend_limit.a", "unknown pool 'a'"),
    (
        "teams: {nlp: {projects: {p: {quota: {a: 1}}}}}",
        "teams.nlp.projects.p.quota.a",
        "unknown pool 'a'",
    ),
    (
        "teams: {nlp: {code_locations: [cv]}, vision: {code_locations: [cv]}}",
        "teams.vision.code_locations",
        "'cv' belongs to team nlp already",
    ),
    ("teams: {nlp: {code_locations: ['']}}", "teams.nlp.code_locations", "has an empty name"),
    # sums
    (
        "teams: {nlp: {quota: {h100: 20}}}",
        "teams: quota of h100",
        "nlp 20, the pool has 16; lower it by 4",
    ),
    (
        "teams: {a: {quota: {h100: 8.5}}, b: {quota: {h100: 8}}, c: {}}",
        "teams: quota of h100",
        "a 8.5 + b 8 = 16.5, the pool has 16; lower one by 0.5",
    ),
    (
        "teams: {a: {quota: {h100: 16}}, b: {quota: {h100: 16}}, c: {quota: {h100: 16}}}",
        "teams: quota of h100",
        "a 16 + b 16 + c 16 = 48, the pool has 16; lower them by 32 together",
    ),
    (
        f"teams: {{{', '.join(f't{n}: {{quota: {{h100: 2}}}}' for n in range(10, 20))}}}",
        "teams: quota of h100",
        "t18 2 + t19 2 + 2 others 4 = 20, the pool has 16; lower them by 4 together",
    ),
    (
        "teams: {nlp: {quota: {h100: 8}, projects: "
        "{a: {quota: {h100: 6}}, b: {quota: {h100: 3}}}}}",
        "teams.nlp.projects: quota of h100",
        "a 6 + b 3 = 9, the team has 8; lower one by 1",
    ),
    (
        "teams: {nlp: {quota: {h100: 8}, projects: {a: {quota: {t4: 1}}}}}",
        "teams.nlp.projects: quota of t4",
        "a 1, the team has 0; lower it by 1",
    ),
    # tiers
    ("tiers: {critical: {preemptible: always}}", "tiers.critical.preemptible", "must be never"),
    ("tiers: {standard: {may_preempt: true}}", "tiers.standard.preemptible", "not 'borrowed'"),
    ("tiers: {standard: {start_within: 0}}", "tiers.standard.start_within", "longer than 0"),
    # sections
    ("borrowing: {kinds: []}", "borrowing.kinds", "is empty; write all"),
    ("borrowing: {kinds: [eval]}", "borrowing.kinds", "unknown kind 'eval'"),
    ("borrowing: {tiers: [gold]}", "borrowing.tiers", "unknown tier 'gold'"),
    ("preemption: {askers: [gold]}", "preemption.askers", "unknown tier 'gold'"),
    ("preemption: {askers: []}", "preemption.askers", "write all, or set preemption.mode: off"),
    ("fair_share: {half_life: 0s}", "fair_share.half_life", "must be longer than 0"),
    (
        "fast_lane: {t5: {gpus: 2, max_gpus: 1, max_duration: 30m}}",
        "fast_lane.t5",
        "unknown pool 't5' (known: h100, t4)",
    ),
    (
        "fast_lane: {t4: {gpus: 20, max_gpus: 1, max_duration: 30m}}",
        "fast_lane.t4.gpus",
        "is 20, and the pool has 16",
    ),
    (
        "fast_lane: {t4: {gpus: 2, max_gpus: 3, max_duration: 30m}}",
        "fast_lane.t4.max_gpus",
        "is 3, and the lane has 2",
    ),
    (
        "fast_lane: {t4: {gpus: 2, max_gpus: 0, max_duration: 30m}}",
        "fast_lane.t4.max_gpus",
        "must be above 0",
    ),
    (
        "fast_lane: {t4: {gpus: 2, max_gpus: 1, max_duration: 0}}",
        "fast_lane.t4.max_duration",
        "must be longer than 0",
    ),
]


@pytest.mark.parametrize(
    ("text", "path", "message"), CONTRADICTIONS, ids=[row[1] for row in CONTRADICTIONS]
)
def test_a_contradiction_is_named_with_its_mend(text, path, message, errors_in, with_pools):
    found = errors_in(text if "pools:" in text else with_pools(text))
    assert any(where.startswith(path) and message in said for where, said in found), found
    assert len(found) == 1


@pytest.mark.parametrize(
    "text",
    [
        # A team without quota lives from what others leave.
        "teams: {nlp: {}}",
        "teams: {nlp: {borrow_limit: {h100: 0}}}",
        # An emergency team needs neither quota nor borrowing.
        "borrowing: {mode: off}\nteams: {ops: {tiers: [critical]}}",
        # A team may be there before its quota is.
        "borrowing: {mode: off}\nteams: {nlp: {}}",
        # Quotas, grants and windows may be more than the pool for a time.
        "windows: [{team: nlp, pool: h100, gpus: 16, cron: 0 20 * * *, duration: 8h}]",
        # All of a pool, to the thousandth.
        "teams: {a: {quota: {t4: 15.9}}, b: {quota: {t4: 0.1}}}",
        "teams: {nlp: {code_locations: [a, b]}, vision: {code_locations: [c]}}",
        "teams: {nlp: {quota: {h100: 8}, projects: {a: {quota: {h100: 8}}, b: {}}}}",
        "fast_lane: {t4: {gpus: 16, max_gpus: 16, max_duration: 30m}}",
        "preemption: {mode: auto, grace: 0, min_runtime: 0}",
    ],
)
def test_what_looks_odd_and_is_sound(text, errors_in, with_pools):
    assert errors_in(with_pools(text)) == []


GRANT = {
    "team": "nlp",
    "pool": "h100",
    "gpus": "2",
    "from": "2026-06-01T00:00:00Z",
    "until": "2026-06-15T00:00:00+02:00",
    "approved_by": "ana",
    "reason": "paper deadline",
}


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"team": "npl"}, "grants[0].team", "did you mean 'nlp'?"),
        ({"pool": "h10"}, "grants[0].pool", "did you mean 'h100'?"),
        ({"project": "pretrain"}, "grants[0].project", "unknown project 'pretrain' (known: none)"),
        ({"gpus": "17"}, "grants[0].gpus", "is 17, and the pool has 16"),
        ({"gpus": "0"}, "grants[0].gpus", "must be above 0"),
        ({"until": "2026-06-01T00:00:00Z"}, "grants[0].until", "is not after from"),
        ({"until": "2026-06-01T01:00:00+02:00"}, "grants[0].until", "is not after from"),
        ({"until": "2026-06-15T00:00:00"}, "grants[0].until", "has no time zone"),
        ({"approved_by": "' '"}, "grants[0].approved_by", "is empty"),
        ({"reason": "''"}, "grants[0].reason", "is empty"),
    ],
)
def test_a_grant_that_cannot_be(change, path, message, errors_in, with_pools):
    assert errors_in(with_pools(_one("grants", GRANT))) == []
    [(where, said)] = errors_in(with_pools(_one("grants", {**GRANT, **change})))
    assert where == path
    assert message in said


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ("from: 2026-06-01T00:00:00Z, until: 2026-06-02T00:00:00Z", None),
        ("cron: 0 20 * * 1-5, duration: 8h", None),
        ("", "needs from and until, or cron and duration"),
        ("from: 2026-06-01T00:00:00Z", "needs from and until, or cron and duration"),
        ("cron: 0 20 * * 1-5", "needs from and until, or cron and duration"),
        ("cron: 0 20 * * 1-5, until: 2026-06-02T00:00:00Z", "needs from and until, or cron"),
        (
            "from: 2026-06-01T00:00:00Z, until: 2026-06-02T00:00:00Z, duration: 8h",
            "needs from and until, or cron and duration",
        ),
        ("from: 2026-06-02T00:00:00Z, until: 2026-06-01T00:00:00Z", "is not after from"),
        ("cron: 0 20 * * 1-5, duration: 0", "must be longer than 0"),
    ],
)
def test_a_window_is_once_or_again_and_again(times, message, errors_in, with_pools):
    comma = ", " if times else ""
    text = f"windows: [{{team: nlp, pool: h100, gpus: 2{comma}{times}}}]"
    found = errors_in(with_pools(text))
    if message is None:
        assert found == []
    else:
        [(_, said)] = found
        assert message in said


NO_SCHEDULES = [
    ("nightly", "'nightly': a cron schedule has five fields: minute, hour, day, month, weekday,"),
    ("@daily", "'@daily': a cron schedule has five fields"),
    ("0 0 20 * * 1", "'0 0 20 * * 1': a cron schedule has five fields"),
    ("", "'': a cron schedule has five fields"),
    (
        "60 20 * * *",
        "'60' is not a valid minute; write 0-59, alone, as a list (1,3), a range (1-5) or a step",
    ),
    ("0 24 * * *", "'24' is not a valid hour; write 0-23"),
    ("0 20 32 * *", "'32' is not a valid day; write 1-31"),
    ("0 20 0 * *", "'0' is not a valid day"),
    ("0 20 * 13 *", "'13' is not a valid month"),
    ("0 20 * * 5-1", "'5-1' is not a valid weekday; write 0-7 (0 and 7 are Sunday)"),
    ("0 20 * * workdays", "'workdays' is not a valid weekday"),
    ("*/0 * * * *", "'*/0' is not a valid minute"),
    (f"{'9' * 5000} * * * *", "9... is not a valid minute"),
    ("0 0 31 2 *", "'0 0 31 2 *' never comes: there is no such day"),
    ("0 0 31 2,4,6 *", "never comes"),
    # Readable field by field: the last Monday of a month is never its 1st or its 21st.
    ("0 0 */20 * 1L", "never comes"),
]


@pytest.mark.parametrize(
    ("cron", "message"), NO_SCHEDULES, ids=[row[0][:20] for row in NO_SCHEDULES]
)
def test_a_schedule_that_cannot_be_followed(cron, message, errors_in, with_pools):
    text = f"windows: [{{team: nlp, pool: h100, gpus: 2, cron: '{cron}', duration: 8h}}]"
    [(where, said)] = errors_in(with_pools(text))
    assert where == "windows[0].cron"
    assert message in said


@pytest.mark.parametrize(
    "cron",
    [
        "* * * * *",
        "*/15 8-18 * * mon-fri",
        "0 0 L * *",
        "0 0 29 2 *",
        "30 6 1,15 jan,jul *",
        "0 9 * * 7",
    ],
)
def test_a_schedule_that_can_be_followed(cron, errors_in, with_pools):
    text = f"windows: [{{team: nlp, pool: h100, gpus: 2, cron: '{cron}', duration: 8h}}]"
    assert errors_in(with_pools(text)) == []


def test_a_sound_policy_has_no_problems(with_pools):
    assert problems_of(parse_policy(with_pools(""))) == []


def _one(section: str, row: dict[str, str]) -> str:
    keys = ", ".join(f"{key}: {value}" for key, value in row.items())
    return f"{section}: [{{{keys}}}]"
