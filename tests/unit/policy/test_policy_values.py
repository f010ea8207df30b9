"""One wrong value in an otherwise sound policy: the key's path and the mend."""

from __future__ import annotations

import pytest

from dagster_gpufair.policy.loading import parse_policy

WRONG = [
    # keys
    ("teams: {nlp: {qouta: {h100: 8}}}", "teams.nlp.qouta", "unknown key; did you mean 'quota'?"),
    ("teams: {nlp: {gpus: 8}}", "teams.nlp.gpus", "unknown key (known: code_locations, quota,"),
    ("borowing: {mode: auto}", "borowing", "did you mean 'borrowing'?"),
    ("tiers: {gold: {pionts: 5}}", "tiers.gold.pionts", "did you mean 'points'?"),
    (
        "pools: {a: {gpus: 1, preemption: {folder: /x}}}",
        "pools.a.preemption.folder",
        "is the same in all pools: write preemption: {folder: …} for all",
    ),
    (
        "pools: {a: {gpus: 1, preemption: {graze: 5m}}}",
        "pools.a.preemption.graze",
        "did you mean 'grace'?",
    ),
    (
        "pools: {a: {gpus: 1, preemption: auto}}",
        "pools.a.preemption",
        "must be a group of keys: preemption: {mode: auto}",
    ),
    ("preemption: {min_run_time: 5m}", "preemption.min_run_time", "did you mean 'min_runtime'?"),
    ("Tiers: {}", "Tiers", "did you mean 'tiers'?"),
    # amounts of GPUs
    ("teams: {nlp: {quota: {h100: eight}}}", "teams.nlp.quota.h100", "'eight' is not a number of"),
    ("teams: {nlp: {quota: {h100: -1}}}", "teams.nlp.quota.h100", "from 0 to"),
    ("teams: {nlp: {quota: {h100: true}}}", "teams.nlp.quota.h100", "true is not a number of GPUs"),
    ("teams: {nlp: {quota: {h100: }}}", "teams.nlp.quota.h100", "nothing is not a number of GPUs"),
    ("teams: {nlp: {quota: {h100: 0.0005}}}", "teams.nlp.quota.h100", "thousandths at most"),
    ("teams: {nlp: {quota: {h100: .inf}}}", "teams.nlp.quota.h100", "no amount"),
    ("teams: {nlp: {quota: {h100: .nan}}}", "teams.nlp.quota.h100", "no amount"),
    ("teams: {nlp: {quota: {h100: 1e400}}}", "teams.nlp.quota.h100", "is not a number of GPUs"),
    ("teams: {nlp: {quota: 8}}", "teams.nlp.quota", "such as {h100: 8}, not 8"),
    ("teams: {nlp: {quota: [h100]}}", "teams.nlp.quota", "such as {h100: 8}, not a list"),
    # durations and moments
    ("preemption: {grace: soon}", "preemption.grace", "write 30s, 45m, 6h or 2d"),
    ("preemption: {grace: -5m}", "preemption.grace", "is not a duration"),
    ("preemption: {grace: 5 minutes}", "preemption.grace", "is not a duration"),
    ("fair_share: {half_life: 20000d}", "fair_share.half_life", "longer than ten years"),
    ("borrowing: {max_duration: 1:30}", "borrowing.max_duration", "YAML reads '1:30' as 90; write"),
    ("windows: [{from: 2026-06-01T12:00:00}]", "windows[0].from", "has no time zone"),
    ("windows: [{from: 2026-06-01}]", "windows[0].from", "2026-06-01 has no time zone"),
    ("windows: [{from: 2026-13-01}]", "windows[0].from", "cannot be read as a date"),
    ("windows: [{from: next week}]", "windows[0].from", "'next week' is not a moment"),
    ("windows: [{from: 5}]", "windows[0].from", "5 is not a moment"),
    # numbers
    ("teams: {nlp: {weight: 0}}", "teams.nlp.weight", "must be at least 0.001, not 0"),
    ("teams: {nlp: {weight: yes}}", "teams.nlp.weight", "must be a number, not true"),
    ("teams: {nlp: {weight: '2'}}", "teams.nlp.weight", "must be a number, not '2'"),
    ("ordering: {share_points: -5}", "ordering.share_points", "must be at least 0, not -5"),
    ("ordering: {share_points: 1.0e+30}", "ordering.share_points", "must be at most 1000000"),
    ("ordering: {share_points: 010}", "ordering.share_points", "YAML reads '010' as 8"),
    ("ordering: {share_points: 0x10}", "ordering.share_points", "YAML reads '0x10' as 16"),
    (f"ordering: {{share_points: {'9' * 400}}}", "ordering.share_points", "is too large"),
    (f"ordering: {{share_points: {'9' * 9000}}}", "ordering.share_points", "be read as a number"),
    ("reclaim: {idle_below: 101}", "reclaim.idle_below", "must be at most 100"),
    ("preemption: {max_per_run: 1.5}", "preemption.max_per_run", "must be a whole number, not 1.5"),
    ("pools: {a: {gpus: 1, gpu_memory_gib: 0}}", "pools.a.gpu_memory_gib", "must be above 0"),
    # choices and switches
    ("version: 2", "version", "must be 1, not 2"),
    (
        "preemption: {mode: atuo}",
        "preemption.mode",
        "must be off, approval or auto, not 'atuo'; did",
    ),
    ("borrowing: {mode: on}", "borrowing.mode", "must be off or auto, not true"),
    ("borrowing: off", "borrowing", "borrowing: {mode: off}"),
    ("preemption: auto", "preemption", "preemption: {mode: auto}"),
    ("tiers: {gold: {may_preempt: 7}}", "tiers.gold.may_preempt", "must be true or false, not 7"),
    ("tiers: {gold: {preemptible: no}}", "tiers.gold.preemptible", "never, borrowed or always"),
    ("borrowing: {kinds: training}", "borrowing.kinds", "must be all, or a list of names"),
    ("borrowing: {kinds: [training, 5]}", "borrowing.kinds", "must be all, or a list of names"),
    ("version: '1'", "version", "must be 1, not '1'; write it without quotes"),
    ("preemption: {signal: SIGUSR3}", "preemption.signal", "not 'SIGUSR3'; did you mean 'SIGUSR"),
    ("preemption: {signal: SIGKILL}", "preemption.signal", "SIGINT or SIGTERM, not 'SIGKILL'"),
    ("preemption: {signal: 10}", "preemption.signal", "must be SIGUSR1, SIGUSR2, SIGURG"),
    (
        "preemption: {folder: gpufair}",
        "preemption.folder",
        "absolute path, such as /shared/gpufair",
    ),
    ("preemption: {folder: ''}", "preemption.folder", "must be an absolute path"),
    ("preemption: {folder: 5}", "preemption.folder", "must be text in quotes, not 5"),
    # shapes
    ("pools: {a: {nodes: [n1, n2]}}", "pools.a.nodes", "such as {h1: 8, h2: 8}, not a list"),
    ("fast_lane: {gpus: 2}", "fast_lane.gpus", "must say of which pool, such as fast_lane: {h100:"),
    ("teams: {nlp: 8}", "teams.nlp", "must be a group of keys (key: value), not 8"),
    ("teams: [nlp]", "teams", "must be a group of keys (key: value), not a list"),
    ("teams: {nlp: {code_locations: nlp}}", "teams.nlp.code_locations", "a list, such as [a, b]"),
    ("teams: {nlp: {code_locations: [1]}}", "teams.nlp.code_locations[0]", "text in quotes, not 1"),
    ("grants: [{team: nlp}]", "grants[0].until", "is missing"),
    ("fast_lane: {t4: {gpus: 1}}", "fast_lane.t4.max_gpus", "is missing"),
    ("tiers: {gold: }", "tiers", "'gold' has nothing behind it"),
]


@pytest.mark.parametrize(("text", "path", "message"), WRONG, ids=[row[0][:50] for row in WRONG])
def test_a_wrong_value_is_named_with_its_mend(text, path, message, errors_in, with_pools):
    base = with_pools(text) if "pools:" not in text else f"{text}\nteams: {{nlp: {{}}}}"
    found = dict(errors_in(base))
    assert message in found.get(path, f"nothing there, but {found}")


@pytest.mark.parametrize("text", [row[0] for row in WRONG], ids=[row[0][:50] for row in WRONG])
def test_no_message_speaks_of_the_library_behind_it(text, errors_in, with_pools):
    for _, message in errors_in(with_pools(text)):
        assert not any(word in message for word in ("Input should", "pydantic", "http", "dict"))


def test_everything_wrong_is_found_at_once(errors_in, with_pools):
    text = with_pools("""
teams:
  nlp: {quota: {h100: 8}, weight: -1}
  vision: {quota: {h100: 6}, qouta: {t4: 1}, borrow_limit: {h10: 2}}
  speech: {quota: {h100: 4}, tiers: [stanard]}
borrowing: {kinds: [trainng]}
""")
    assert errors_in(text) == [
        ("teams.nlp.weight", "must be at least 0.001, not -1"),
        ("teams.vision.qouta", "unknown key; did you mean 'quota'?"),
        (
            "teams.vision.borrow_limit.h10",
            "unknown pool 'h10'; did you mean 'h100'? (known: h100, t4)",
        ),
        (
            "teams.speech.tiers",
            "unknown tier 'stanard'; did you mean 'standard'? "
            "(known: critical, milestone, standard, exploratory)",
        ),
        (
            "teams: quota of h100",
            "nlp 8 + vision 6 + speech 4 = 18, the pool has 16; lower one by 2",
        ),
        (
            "borrowing.kinds",
            "unknown kind 'trainng'; did you mean 'training'? "
            "(known: experiment, training, evaluation, batch_inference, online_inference)",
        ),
    ]


TOO_MUCH = "teams: {nlp: {quota: {h100: 8}}, vision: {quota: {h100: 9, t4: 2}}}\n"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("pools: {h100: {nodes: {h1: 8, h2: 8}, prize: 4}, t4: {gpus: 16}}", "pools.h100.prize"),
        ("pools: {h100: {gpus: 16}, t4: 16}", "pools.t4"),
        ("pools: {h100: {gpus: 16}, t4: {gpus: x}}", "pools.t4.gpus"),
        ("tiers: {gold: 5}", "tiers.gold"),
        ("tems: {}", "tems"),
        ("borrowing: off", "borrowing"),
        ("fast_lane: {t4: {gpus: 2, max_gpus: 1, max_duration: x}}", "fast_lane.t4.max_duration"),
    ],
)
def test_quotas_above_a_pool_are_told_beside_errors_elsewhere(text, path, errors_in, with_pools):
    found = errors_in(f"{TOO_MUCH}{text}" if "pools:" in text else with_pools(f"{TOO_MUCH}{text}"))
    assert [where for where, _ in found] == [path, "teams: quota of h100"]


@pytest.mark.parametrize(
    "text",
    [
        # The misspelt quota would have covered the project's.
        "teams: {nlp: {qouta: {h100: 8}, projects: {pretrain: {quota: {h100: 4}}}}}",
        # The team is there, only not as it should be.
        "teams: {nlp: {quota: {h100: 8}}, vision: 5}\n"
        "windows: [{team: vision, pool: h100, gpus: 1, cron: 0 1 * * *, duration: 1h}]",
        "tiers: {gold: 5}\nteams: {nlp: {tiers: [gold]}}",
        "borrowing: {mode: off}\nteams: {nlp: {quota: {h100: x}}}",
        # How many GPUs the pool has is not known.
        f"pools: {{h100: {{nodes: {{h1: 8, h2: eight}}}}, t4: {{gpus: 16}}}}\n{TOO_MUCH}",
        f"pools: {{h100: {{nodse: {{h1: 8}}}}, t4: {{gpus: 16}}}}\n{TOO_MUCH}",
        f"pools: {{h100: {{nodes: {{h1: 8, h1: 8}}}}, t4: {{gpus: 16}}}}\n{TOO_MUCH}",
        "pools: {h100: 16}\nteams: {nlp: {quota: {h100: 9}}}\n"
        "fast_lane: {h100: {gpus: 2, max_gpus: 1, max_duration: 1h}}\n"
        "windows: [{team: nlp, pool: h100, gpus: 1, cron: 0 1 * * *, duration: 1h}]",
        f"pools: {{}}\n{TOO_MUCH}",
        # The names are there, though not where they should be.
        "tier: {gold: {points: 5}}\nteams: {nlp: {tiers: [gold]}}",
        "teams: {nlp: {projects: {a: 5}}}\n"
        "grants: [{team: nlp, project: a, pool: h100, gpus: 1, from: 2026-06-01T00:00:00Z, "
        "until: 2026-06-15T00:00:00Z, approved_by: ana, reason: demo}]",
        # A default that nobody chose.
        "tiers: {exploratory: }\nteams: {nlp: {tiers: [1]}}",
    ],
)
def test_what_only_follows_from_an_error_is_not_reported(text, errors_in, with_pools):
    assert len(errors_in(text if "pools:" in text else with_pools(text))) == 1


def test_a_key_with_nothing_behind_it_means_its_default(with_pools):
    policy = parse_policy(
        with_pools(
            "teams:\n  nlp:\n  vision: {quota: , projects: }\ngrants:\nborrowing:\nversion:\n"
        )
    )
    assert policy == parse_policy(with_pools("teams: {nlp: {}, vision: {}}"))


def test_off_needs_no_quotes(with_pools):
    text = "borrowing: {mode: off}\npreemption: {mode: off}\nreclaim: {mode: off}"
    policy = parse_policy(with_pools(text))
    assert (policy.borrowing.mode, policy.preemption.mode, policy.reclaim.mode) == ("off",) * 3


def test_a_tier_keeps_the_default_keys_that_the_file_does_not_change(with_pools):
    policy = parse_policy(with_pools("tiers: {standard: {points: 2500}, critical: , night: {}}"))
    assert list(policy.tiers) == ["milestone", "standard", "exploratory", "night"]
    assert policy.tiers["standard"].points == 2500
    assert policy.tiers["standard"].start_within is not None
