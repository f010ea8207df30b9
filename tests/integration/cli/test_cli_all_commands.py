"""What holds for every command: its JSON, its width, its times, and what it says of a daemon that is gone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_samples import POLICY, Filling, asked, minutes, run_id, utc
from click.testing import Result

from dagster_gpufair.cli.main import COMMANDS
from dagster_gpufair.cli.policy.command import COMMANDS as POLICY_COMMANDS
from dagster_gpufair.ledger import lifecycle, requests

Gpufair = Callable[..., Result]

MOMENT = (
    ("queue",),
    ("queue", "--all"),
    ("pools",),
    ("teams",),
    ("explain", "00000003"),
    ("explain", "00000001"),
)
"""Those that show the present."""
REST = (
    ("explain", "00000006"),
    ("explain", "00000007"),
    ("history", "00000001"),
    ("history", "00000006"),
    ("refused",),
    ("policy", "check", "gpufair.yaml"),
    ("policy", "show"),
    ("policy", "history"),
    ("decide", "case.yaml"),
    ("cordon", "h100", "h2", "--reason", "ECC errors on the third card, again, since this morning"),
    ("uncordon", "h100", "h2"),
    ("approvals",),
    (
        "pause",
        "preemption",
        "--reason",
        "the cluster is moved, and nobody should lose any work today",
    ),
    ("resume", "preemption"),
    ("keep", "00000001", "--until", "2h", "--reason", "the demo is at noon"),
)
WITHOUT_JSON = {"init", "demo"}
NEED_A_QUESTION = {"approve", "reject"}
"""Looked at where there is something to decide."""

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
NAMES_OF_TIMES = re.compile(
    r"(at|since|submitted|about|at_the_latest|last_pass|from|until|released|now)"
)
CLOCK = re.compile(r"\d{1,2}:\d\d(?::\d\d)?(?P<zone>[ \n]+(?:NOON|UTC)\b)?")

CASE = """\
name: two of three wait
policy:
  pools: {h100: {nodes: {h1: 8}}}
  teams: {nlp: {quota: {h100: 8}}, vision: {}}
now: 2026-06-01T12:00:00Z
running: [{id: r1, team: nlp, tier: standard, pool: h100, gpus: 8, started: -2h, max_duration: 3h}]
queued:
  - {id: a-run-with-a-rather-long-name, team: nlp, tier: standard, pool: h100, gpus: 8, submitted: -1m}
  - {id: q2, team: vision, tier: standard, pool: h100, gpus: 2, submitted: -2m}
  - {id: q3, team: vision, tier: standard, pool: h100, gpus: 99, submitted: -2m}
"""


@pytest.fixture
def busy(queue: Filling) -> Filling:
    """Of everything something: what runs, waits, is reserved, was refused, is over, and is to come."""
    grant = (
        f"{{team: vision, pool: h100, gpus: 2, from: {utc(60)}, until: {utc(-60)}, "
        "approved_by: ana, reason: paper deadline}"
    )
    window = f"{{team: nlp, pool: h100, gpus: 2, from: {utc(-90)}, until: {utc(-120)}}}"
    queue.adopt(f"{POLICY}grants: [{grant}]\nwindows: [{window}]\n")
    Path("gpufair.yaml").write_text(queue.text)
    Path("case.yaml").write_text(CASE)
    queue.run(asked(1, 8, ago=90, team="vision", source="ana", max_duration=7200.0), ago=90)
    queue.run(asked(2, 4, ago=80, source="qwertzui", job_name="evaluate_all_the_models"), ago=80)
    queue.submit(
        asked(3, 8, ago=41, tier="milestone", project="pretrain", job_name="pretrain_large_model"),
        asked(4, 2, ago=60 * 30, team="speech", source="somebody.with.a.long.name@example.com"),
    )
    queue.run(asked(6, 1, ago=70, pools=("t4",)), ago=70)
    queue.end(6, ago=50)
    with queue.ledger.writing() as session:
        request = asked(7, 32, ago=20, source="ana")
        why = "it asks for 32 h100, and the pool has 16. Ask for fewer, or for another pool"
        lifecycle.refuse(session, request, "exceeds_pool", why, minutes(20))
        lifecycle.find(session, asked(8, 1, team="vision"), "t4", {}, minutes(5))
    queue.reserve(ago=1)
    return queue


def values(data: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(key, value) of all that is no group."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from values(value, name)
    elif isinstance(data, list):
        for value in data:
            yield from values(value, key)
    else:
        yield key, data


@pytest.mark.parametrize("words", [*MOMENT, *REST, ("policy", "schema")], ids=" ".join)
def test_json_has_its_schema_and_times_with_a_zone(
    busy: Filling, gpufair: Gpufair, words: tuple[str, ...]
) -> None:
    data = json.loads(gpufair(*words, "--json").stdout)
    assert next(iter(data.items())) == ("schema", 1)
    for key, value in values(data):
        if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d", value):
            assert ISO.fullmatch(value), f"{key}: {value} names no zone"
        if NAMES_OF_TIMES.fullmatch(key) or key.endswith("_at"):
            assert value is None or ISO.fullmatch(str(value)), f"{key}: {value} is no time"
        if isinstance(value, (int, float)) and words != ("policy", "schema"):
            assert value < 1e8, f"{key}: {value} looks like seconds since 1970"


def test_json_is_documented_for_every_command() -> None:
    docs = (Path(__file__).parents[3] / "docs" / "json.md").read_text()
    tested = {words[0] for words in (*MOMENT, *REST)}
    for command in COMMANDS.keys() - WITHOUT_JSON - {"policy"}:
        assert command in tested | NEED_A_QUESTION
        assert f"`gpufair {command}" in docs or f"`{command} --json`" in docs
    for command in POLICY_COMMANDS:
        assert f"`gpufair policy {command} --json`" in docs or f"`{command} --json`" in docs


def test_every_key_of_the_json_is_documented(busy: Filling, gpufair: Gpufair) -> None:
    docs = (Path(__file__).parents[3] / "docs" / "json.md").read_text()
    named = set(re.findall(r"`(\w+)`", docs)) | set(re.findall(r"\w+", "what name"))
    for words in (*MOMENT, *REST):
        data = json.loads(gpufair(*words, "--json").stdout)
        assert data.keys() <= named, f"{' '.join(words)}: {data.keys() - named}"


@pytest.mark.parametrize("words", [*MOMENT, *REST], ids=" ".join)
def test_no_line_is_longer_than_80_columns(
    busy: Filling, gpufair: Gpufair, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = [line for line in gpufair(*words).stdout.splitlines() if len(line) > 80]
    assert long == []


@pytest.mark.parametrize("words", [*MOMENT, *REST], ids=" ".join)
def test_every_time_of_day_names_its_zone(
    busy: Filling, gpufair: Gpufair, words: tuple[str, ...]
) -> None:
    said = ISO.sub("", gpufair(*words).stdout)
    without = [found[0] for found in CLOCK.finditer(said) if found["zone"] is None]
    assert without == []


@pytest.mark.parametrize("words", MOMENT, ids=" ".join)
def test_a_daemon_that_is_gone(busy: Filling, gpufair: Gpufair, words: tuple[str, ...]) -> None:
    assert "queue daemon" not in gpufair(*words).stdout
    busy.passed(ago=5)
    said = gpufair(*words).stdout
    assert said.startswith(
        "The queue daemon on gpuhost does not run: its last pass was 5 min ago, at "
    )
    assert "No run starts until it does. Start `dagster dev` or `dagster-daemon run`." in said


def test_a_daemon_that_is_gone_because_of_a_typo(
    busy: Filling, gpufair: Gpufair, tmp_path: Path
) -> None:
    busy.passed(ago=5)
    settings = tmp_path / "dagster.yaml"
    settings.write_text(settings.read_text().replace("enabled: false", "enabeld: false"))
    said = gpufair("queue").stdout
    assert "unknown key `telemetry.enabeld`; did you mean 'enabled'?" in said
    assert "00000003" in said, "the ledger can be read all the same"


def test_colour_only_where_a_person_should_act(
    busy: Filling, gpufair: Gpufair, monkeypatch: pytest.MonkeyPatch
) -> None:
    coloured = re.compile(r"\x1b\[(?:3[1-6]|9[1-6])m([^\x1b]*)")
    assert "\x1b" not in gpufair("queue", "--all").stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "250")
    with busy.ledger.writing() as session:
        requests.block(session, {run_id(3): ("environment", "Code location 'speech' is away.")})
    said = " ".join(coloured.findall(gpufair("queue", "--all").stdout))
    assert "uses 1 t4 without a grant" in said
    assert "environment: Code location 'speech' is away." in said
    assert "insufficient_gpus" not in said and "borrowed" not in said
