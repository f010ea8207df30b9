"""The policy as people meet it: the starter file, the schema in an editor, plain sentences."""

from __future__ import annotations

import re

import pytest
import yaml

from dagster_gpufair.policy.checks import problems_of
from dagster_gpufair.policy.loading import parse_policy, policy_from
from dagster_gpufair.policy.models import DEFAULT_TIERS, KINDS
from dagster_gpufair.policy.notes import notes_of
from dagster_gpufair.policy.plain import sentences
from dagster_gpufair.policy.schema import json_schema
from dagster_gpufair.policy.starter import starter_text


def test_the_starter_policy_takes_effect_as_it_is():
    policy = parse_policy(starter_text())
    assert problems_of(policy) == []
    assert notes_of(policy) == []
    assert (len(policy.pools), len(policy.teams)) == (2, 3)


def test_the_starter_policy_says_the_defaults_that_the_program_has():
    policy = parse_policy(starter_text())
    bare = parse_policy("pools: {a: {gpus: 1}}\nteams: {b: {}}")
    assert policy.model_dump(exclude={"pools", "teams"}) == bare.model_dump(
        exclude={"pools", "teams"}
    )


def test_the_starter_policy_shows_or_mentions_every_key_and_kind():
    words = set(re.findall(r"\w+", starter_text()))
    sections = (*json_schema()["$defs"].values(), json_schema())
    assert {key for section in sections for key in section["properties"]} <= words
    assert set(KINDS) <= words


@pytest.mark.parametrize(
    "key",
    [
        "fast_lane:",
        "grants:",
        "windows:",
        "    ceilings:",
        "    projects:",
        "    preemption: {mode: auto}",
        "    borrowing: {max_duration",
        "    borrowing: {kinds",
        "    lend_limit: {h100",
    ],
)
def test_what_the_starter_policy_has_in_comments_is_sound_without_the_signs(key):
    lines = starter_text().splitlines()
    bare = [re.sub(r"^(\s*)# ", r"\1", line) for line in lines]
    start = next(index for index, line in enumerate(bare) if line.startswith(key))
    end = start + 1
    while end < len(lines) and re.match(r"\s*#\s{3,}", lines[end]):
        end += 1
    text = "\n".join([*lines[:start], *bare[start:end], *lines[end:]])
    assert parse_policy(text) != parse_policy(starter_text())


def test_a_policy_can_be_dumped_and_read_again():
    policy = parse_policy(starter_text())
    assert policy_from(policy.model_dump(by_alias=True, mode="json")) == policy


def test_the_schema_helps_an_editor():
    schema = json_schema()
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["required"] == ["pools", "teams"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["tiers"]["default"] == DEFAULT_TIERS
    assert {"type": "null"} in schema["properties"]["tiers"]["additionalProperties"]["anyOf"]
    team = schema["$defs"]["Team"]["properties"]
    assert team["quota"]["additionalProperties"]["type"] == "number"
    assert "guaranteed" in team["quota"]["description"]
    assert set(schema["$defs"]["Grant"]["properties"]) >= {"from", "until"}


def test_the_starter_policy_passes_the_schema_that_its_first_line_names():
    jsonschema = pytest.importorskip("jsonschema")
    assert starter_text().startswith("# yaml-language-server: $schema=gpufair.schema.json\n")
    jsonschema.Draft202012Validator.check_schema(json_schema())
    check = jsonschema.Draft202012Validator(json_schema())
    assert list(check.iter_errors(yaml.safe_load(starter_text()))) == []


@pytest.mark.parametrize(
    ("text", "is_sound"),
    [
        ("preemption: {mode: off, grace: 0}", True),
        ("preemption: {mode: 'off', grace: 1h30m}", True),
        ("preemption: {grace: 300}", False),
        ("preemption: {folder: /shared/gpufair, signal: SIGURG}", True),
        ("preemption: {folder: null, signal: null}", True),
        ("preemption: {signal: USR1}", False),
        ("preemption: {folder: shared/gpufair}", False),
        ("preemption: {grace: 5 minutes}", False),
        ("preemption: {mode: true}", False),
        ("teams: {nlp: {quota: {h100: many}}}", False),
    ],
)
def test_an_editor_marks_what_the_check_refuses(text, is_sound, with_pools, errors_in):
    jsonschema = pytest.importorskip("jsonschema")
    data = yaml.safe_load(with_pools(text))
    assert jsonschema.Draft202012Validator(json_schema()).is_valid(data) is is_sound
    assert (errors_in(with_pools(text)) == []) is is_sound


def test_teams_read_what_they_are_guaranteed():
    policy = parse_policy("""
pools:
  h100: {nodes: {h1: 8, h2: 8}}
  t4: {gpus: 16}
teams:
  nlp:
    quota: {h100: 8}
    borrow_limit: {h100: 4}
    code_locations: [nlp]
    tiers: [milestone, standard, exploratory]
  vision: {quota: {h100: 6}, lend_limit: {h100: 2}, borrow_limit: {t4: 0}, weight: 2}
  speech: {quota: {t4: 16}, borrow_limit: {h100: 1, t4: 0}, lend_limit: {t4: 0}, tiers: [standard]}
""")
    said = sentences(policy)
    for sentence in (
        "h100 has 16 GPUs on 2 nodes, 14 of them in quotas.",
        "t4 has 16 GPUs, all of them in quotas.",
        "nlp is guaranteed 8 of 16 h100, may borrow 4 more, and lends all it does not use.",
        "nlp is guaranteed no t4, and may borrow any idle t4.",
        "nlp owns the runs of the code location nlp, and may ask for the tiers milestone, "
        "standard and exploratory.",
        "vision is guaranteed 6 of 16 h100, may borrow any idle h100, and lends at most 2 of them.",
        "vision may not use t4.",
        "speech is guaranteed no h100, and may borrow up to 1 idle h100.",
        "speech is guaranteed 16 of 16 t4, may not borrow, and lends nothing.",
        "speech may ask for the tier standard.",
        "A run of tier milestone counts 3000 points and should start within 2 h.",
        "A run of tier exploratory counts 1000 points.",
        "Teams that want idle GPUs share them by weight: nlp 1, vision 2 and speech 1.",
        "Each hour of waiting counts 100 points, and runs with more points go first.",
        "Runs of the tier critical go first, whichever team asks, and the rules for borrowing do not "
        "bind them.",
        "In each pool, GPUs are reserved for the first run within its team's quota that finds no room, "
        "and for the first borrowing run that has waited 30 min.",
        "Other runs may use GPUs that the reservation does not need, or that are free again before it "
        "starts.",
        "No run is stopped for another.",
    ):
        assert sentence in said


def test_only_rules_in_force_are_said():
    said = sentences(
        parse_policy("""
pools: {h100: {gpus: 16}}
teams:
  nlp:
    quota: {h100: 8}
    borrow_limit: {h100: 4}
    lend_limit: {h100: 4}
    ceilings: {storage_gib: 10}
borrowing: {mode: off}
""")
    )
    assert "nlp is guaranteed 8 of 16 h100, may not borrow, and lends nothing." in said
    assert "Idle GPUs stay with their team: nobody borrows." in said
    assert not any("together" in sentence for sentence in said)


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("", "No run is stopped for another."),
        (
            "preemption: {mode: auto, grace: 2m}",
            "the same team: after 2 min of notice, and not before it has run for 10 min. It goes on later.",
        ),
        (
            "preemption: {mode: approval}",
            "the same team: once a person has approved it, after 5 min",
        ),
        (
            "borrowing: {max_duration: 2h}",
            "What has borrowed for 2 h is stopped for whoever waits, after 5 min of notice.",
        ),
    ],
)
def test_who_is_stopped_for_whom(rules, says):
    said = sentences(parse_policy(f"pools: {{a: {{gpus: 1}}}}\nteams: {{b: {{}}}}\n{rules}"))
    assert says in said[-1]


def test_rules_of_one_pool_or_one_team_are_said_of_these():
    said = sentences(
        parse_policy("""
pools:
  h100: {gpus: 16, preemption: {mode: auto, grace: 2m, askers: [critical, standard]}}
  t4: {gpus: 16, borrowing: {max_duration: 4h, tiers: [standard]}}
  v100: {gpus: 16, borrowing: {mode: off}}
teams:
  nlp: {quota: {v100: 8}, borrowing: {kinds: [batch_inference], max_duration: 1h}}
  vision: {quota: {h100: 8}}
""")
    )
    assert {
        "nlp is guaranteed 8 of 16 v100, may not borrow, and lends nothing.",
        "vision may not use v100.",
        "In h100, idle GPUs are lent to teams that want more than their quota.",
        "In t4, idle GPUs are lent to teams that want more than their quota, for the tier standard only.",
        "In v100, idle GPUs stay with their team: nobody borrows.",
        "In h100, team nlp borrows, for batch_inference only.",
        "In t4, team nlp borrows, for the tier standard only, for batch_inference only.",
        "In v100, team nlp does not borrow.",
        "In h100, borrowed work is stopped for work within a quota, and a lower tier for a higher one of the "
        "same team: after 2 min of notice, and not before it has run for 10 min. It goes on later. This is "
        "done for the tiers critical and standard only.",
        "In t4, what nlp has borrowed for 1 h is stopped for whoever waits, after 5 min of notice; what "
        "vision has borrowed for 4 h is stopped for whoever waits, after 5 min of notice.",
    } <= set(said)


def test_where_runs_find_their_notices_is_said_where_any_are_given():
    keys = "folder: /shared/gpufair, signal: SIGUSR1"
    base = "pools: {a: {gpus: 1}}\nteams: {b: {}}\npreemption: "
    said = sentences(parse_policy(f"{base}{{mode: auto, {keys}}}"))
    assert "Runs find their notices and their checkpoints in the folder /shared/gpufair." in said
    assert "A run that is given notice is sent SIGUSR1." in said
    off = sentences(parse_policy(f"{base}{{mode: off, {keys}}}"))
    assert not any("SIGUSR1" in sentence or "/shared" in sentence for sentence in off)


def test_projects_read_what_they_are_guaranteed_inside_their_team():
    said = sentences(
        parse_policy("""
pools: {h100: {gpus: 16}, t4: {gpus: 4}}
teams:
  nlp:
    quota: {h100: 8}
    projects:
      pretrain: {quota: {h100: 4}}
      eval: {quota: {h100: 1.5}, borrow_limit: {h100: 2}, lend_limit: {h100: 1}}
      demo: {quota: {h100: 1}, borrow_limit: {h100: 0}, lend_limit: {h100: 0}}
      rest: {borrow_limit: {h100: 1}}
""")
    )
    assert [sentence for sentence in said if sentence.startswith("nlp/")] == [
        "nlp/pretrain is guaranteed 4 of nlp's 8 h100, may use more as nlp may, "
        "and lends all it does not use.",
        "nlp/eval is guaranteed 1.5 of nlp's 8 h100, may use 2 more, and lends at most 1 of them.",
        "nlp/demo is guaranteed 1 of nlp's 8 h100, may use no more, and lends nothing.",
    ]


def test_what_holds_for_a_time_is_said_with_its_time():
    said = sentences(
        parse_policy("""
pools: {h100: {gpus: 16}}
teams: {nlp: {quota: {h100: 8}, projects: {pretrain: {}}}}
grants:
  - {team: nlp, pool: h100, gpus: 2, from: 2026-06-01T00:00:00+02:00, until: 2026-06-15T12:30:05Z,
     approved_by: ana, reason: "paper\n deadline"}
  - {team: nlp, project: pretrain, pool: h100, gpus: 0.5, from: 2026-06-01T00:00:00Z,
     until: 2026-06-02T00:00:00Z, approved_by: ben, reason: a try}
windows:
  - {team: nlp, pool: h100, gpus: 4, from: 2026-06-01T08:00:00Z, until: 2026-06-01T18:00:00Z}
  - {team: nlp, pool: h100, gpus: 1, cron: 0  20 * * 1-5, duration: 90m}
""")
    )
    start = said.index(
        "nlp is guaranteed 2 more h100 from 2026-05-31 22:00 UTC until 2026-06-15 12:30:05 UTC "
        "(approved by ana: paper deadline)."
    )
    assert said[start + 1 : start + 5] == [
        "nlp/pretrain is guaranteed 0.5 more h100 from 2026-06-01 00:00 UTC until 2026-06-02 00:00 UTC "
        "(approved by ben: a try).",
        "nlp is guaranteed 4 more h100 from 2026-06-01 08:00 UTC until 2026-06-01 18:00 UTC, "
        "and no other team borrows them.",
        "nlp is guaranteed 1 more h100 for 1 h 30 min from each '0 20 * * 1-5' (cron, UTC) on, "
        "and no other team borrows them.",
        "A run of another team that could still hold GPUs when a window begins starts only if enough are "
        "left for the window.",
    ]


def test_ceilings_lanes_and_reservations_are_said():
    said = sentences(
        parse_policy("""
pools: {h100: {gpus: 16, gpu_memory_gib: 80}, t4: {gpus: 4}}
teams:
  nlp: {quota: {h100: 8}, ceilings: {cpus: 256, memory_gib: 2048, gpu_memory_gib: 640}}
  vision: {quota: {h100: 8}, ceilings: {cpus: 0.5}}
fast_lane: {t4: {gpus: 2, max_gpus: 0.5, max_duration: 30m}}
backfill: {enabled: false, reserve_after: 2h}
""")
    )
    for sentence in (
        "All running GPU runs of nlp together use at most 256 CPUs, 2048 GiB of memory and 640 GiB of GPU "
        "memory.",
        "All running GPU runs of vision together use at most 0.5 CPUs.",
        "2 of 4 t4 are a fast lane for runs of at most 0.5 GPU and 30 min.",
        "In each pool, GPUs are reserved for the first run within its team's quota that finds no room, "
        "and for the first borrowing run that has waited 2 h.",
        "No run behind it in the queue starts in that pool before it.",
    ):
        assert sentence in said


@pytest.mark.parametrize(
    ("team", "rest", "sentence"),
    [
        ("borrow_limit: {h100: 0}", "", "ops may not use h100."),
        (
            "tiers: [critical]",
            "borrowing: {mode: off}",
            "ops may use h100 only for the tier critical.",
        ),
        ("tiers: [standard]", "borrowing: {tiers: [milestone]}", "ops may not use h100."),
        (
            "tiers: [critical, standard], borrow_limit: {h100: 0}",
            "windows: [{team: ops, pool: h100, gpus: 1, cron: 0 1 * * *, duration: 1h}]",
            "ops may use h100 only by its grants and windows and for the tier critical.",
        ),
    ],
)
def test_a_team_without_a_quota_reads_what_it_may_use(team, rest, sentence):
    policy = parse_policy(f"pools: {{h100: {{gpus: 16}}}}\nteams: {{ops: {{{team}}}}}\n{rest}")
    assert sentence in sentences(policy)


def test_limits_on_who_may_borrow_are_said():
    said = sentences(
        parse_policy("""
pools: {h100: {gpus: 16}}
teams: {nlp: {quota: {h100: 8}}}
borrowing: {tiers: [standard], kinds: [training, evaluation]}
""")
    )
    assert (
        "Idle GPUs are lent to teams that want more than their quota, for the tier standard only, "
        "for training and evaluation only."
    ) in said
