"""What a platform team sets in good faith and this version does not act on is said plainly."""

from __future__ import annotations

import pytest

from dagster_gpufair.policy import notes_of, parse_policy


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("preemption: {mode: auto}", "preemption.mode"),
        ("preemption: {mode: approval}", "preemption.mode"),
        ("reclaim: {mode: auto}", "reclaim"),
        ("reclaim: {mode: off}", "reclaim"),
        ("reclaim: {idle_for: 1h}", "reclaim"),
        ("borrowing: {max_duration: 2h}", "borrowing.max_duration"),
        ("backfill: {enabled: false}", "backfill"),
        ("fast_lane: {t4: {gpus: 2, max_gpus: 1, max_duration: 30m}}", "fast_lane"),
        (
            "grants: [{team: nlp, pool: t4, gpus: 1, from: 2026-06-01T00:00:00Z, "
            "until: 2026-06-02T00:00:00Z, approved_by: ana, reason: demo}]",
            "grants",
        ),
        ("windows: [{team: nlp, pool: t4, gpus: 1, cron: 0 1 * * *, duration: 1h}]", "windows"),
        (
            "teams: {nlp: {quota: {h100: 8}, projects: {a: {quota: {h100: 4}}}}}",
            "teams.nlp.projects",
        ),
        ("teams: {nlp: {ceilings: {cpus: 64}}}", "teams.nlp.ceilings"),
    ],
)
def test_a_setting_that_does_not_act_yet_is_noted_and_stops_nothing(text, path, with_pools):
    [note] = notes_of(parse_policy(with_pools(text)))
    assert note.path == path
    assert note.severity == "note"
    assert note.message.startswith("accepted, not acted on in this version: ")


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


def test_lending_more_than_there_is_means_lending_all(with_pools):
    text = "teams: {nlp: {quota: {h100: 4}, lend_limit: {h100: 8}}}"
    [note] = notes_of(parse_policy(with_pools(text)))
    assert note.path == "teams.nlp.lend_limit.h100"
    assert note.message == "8 is above the quota (4): it lends all of that"
