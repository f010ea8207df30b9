"""The policy as people meet it: the starter file, the schema in an editor, plain sentences."""

from __future__ import annotations

import re

import pytest

from dagster_gpufair.policy import (
    json_schema,
    notes_of,
    parse_policy,
    policy_from,
    problems_of,
    sentences,
    starter_text,
)
from dagster_gpufair.policy.models import DEFAULT_TIERS, KINDS


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
    assert "sure of" in team["quota"]["description"]
    assert set(schema["$defs"]["Grant"]["properties"]) >= {"from", "until"}


def test_teams_read_what_they_are_sure_of():
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
        "h100 has 16 GPUs on 2 nodes: 14 in quotas, 2 in none.",
        "t4 has 16 GPUs: all in quotas.",
        "nlp is sure of 8 of 16 h100, may borrow 4 more, lends all it does not use.",
        "nlp is sure of no t4, may borrow any that are idle.",
        "nlp owns the runs of the code location nlp, and may ask for the tiers milestone, "
        "standard and exploratory.",
        "vision is sure of 6 of 16 h100, may borrow any that are idle, lends at most 2 of them.",
        "vision may not use t4.",
        "speech is sure of no h100, may borrow up to 1 that are idle.",
        "speech is sure of 16 of 16 t4, may not borrow, lends nothing.",
        "speech may ask for the tier standard.",
        "milestone counts 3000 points and is to start within 2h.",
        "exploratory counts 1000 points.",
        "They are shared by weight among the teams that want them: nlp 1, vision 2 and speech 1.",
        "Each hour of waiting counts 100 points; more points come first.",
        "critical goes first, whichever team asks, and is not bound by the rules for borrowing.",
        "In each pool, GPUs are kept for the first request that a quota covers and that finds no room, "
        "and for the first borrower's that has waited 30m.",
        "Others may pass it on what it does not need, or gets back in time.",
        "Running work is not stopped for other work.",
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
    assert "nlp is sure of 8 of 16 h100, may not borrow, lends nothing." in said
    assert "Idle GPUs stay with their team: nobody borrows." in said
    assert not any("together" in sentence for sentence in said)


@pytest.mark.parametrize("mode", ["approval", "auto"])
def test_it_is_said_that_nothing_is_stopped_whatever_the_mode(mode):
    said = sentences(
        parse_policy(f"pools: {{a: {{gpus: 1}}}}\nteams: {{b: {{}}}}\npreemption: {{mode: {mode}}}")
    )
    assert said[-1] == (
        f"Running work is not stopped for other work in this version, though preemption.mode is {mode}."
    )


def test_projects_read_what_they_are_sure_of_inside_their_team():
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
        "nlp/pretrain is sure of 4 of nlp's 8 h100, may use more as nlp may, "
        "lends all it does not use.",
        "nlp/eval is sure of 1.5 of nlp's 8 h100, may use 2 more, lends at most 1 of them.",
        "nlp/demo is sure of 1 of nlp's 8 h100, may use no more, lends nothing.",
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
        "nlp is sure of 2 more h100 from 2026-05-31 22:00 UTC until 2026-06-15 12:30:05 UTC "
        "(approved by ana: paper deadline)."
    )
    assert said[start + 1 : start + 5] == [
        "nlp/pretrain is sure of 0.5 more h100 from 2026-06-01 00:00 UTC until 2026-06-02 00:00 UTC "
        "(approved by ben: a try).",
        "nlp is sure of 4 more h100 from 2026-06-01 08:00 UTC until 2026-06-01 18:00 UTC, "
        "lent to nobody.",
        "nlp is sure of 1 more h100 for 1h30m from each '0 20 * * 1-5' (cron, UTC) on, "
        "lent to nobody.",
        "Others' work that would reach into such a time starts only if enough is left for it.",
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
        "nlp's runs that hold GPUs have at most 256 CPUs, 2048 GiB of memory and 640 GiB of GPU "
        "memory together.",
        "vision's runs that hold GPUs have at most 0.5 CPUs together.",
        "2 of 4 t4 are kept free for requests of at most 0.5 of them and 30m.",
        "In each pool, GPUs are kept for the first request that a quota covers and that finds no room, "
        "and for the first borrower's that has waited 2h.",
        "Nothing passes it there.",
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
