"""``gpufair decide``: a case as a table, as data, and compared with what it expects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dagster_gpufair.cli.decide import command as decide_module
from dagster_gpufair.cli.main import cli
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import (
    Class,
    Plan,
    Points,
    Preemption,
    Promise,
    Reservation,
    State,
    Victim,
    Waiting,
)

Decide = Callable[..., Result]

CASE = """\
name: two wait for four GPUs
policy:
  pools: {t4: {gpus: 4}}
  teams: {red: {quota: {t4: 4}}, blue: {}}
now: 2026-06-01T12:00:00Z
queued:
  - {id: q1, team: blue, tier: standard, pool: t4, gpus: 4, submitted: -5m}
  - {id: q2, team: red, tier: standard, pool: t4, gpus: 4, submitted: -1m}
expect:
  start: [q2]
  wait: {q1: insufficient_gpus}
"""
UNMET = CASE.replace("start: [q2]", "start: [q1, q2]").replace("two wait", "both start")
BROKEN = CASE.replace("submitted: -1m", "submited: -1m")
IDLE = "policy: {pools: {t4: {gpus: 4}}, teams: {red: {}}}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with cases in it, and no Dagster instance."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "cases" / "deeper").mkdir(parents=True)
    (tmp_path / "cases" / "b.yaml").write_text(CASE)
    (tmp_path / "cases" / "deeper" / "a.yml").write_text(CASE)
    (tmp_path / "cases" / "notes.txt").write_text("no case")
    return tmp_path


@pytest.fixture
def gpufair() -> Decide:
    """Runs ``gpufair decide`` as a person would type it."""

    def run(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, ["decide", *words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return run


def test_a_case_as_a_table(here: Path, gpufair: Decide) -> None:
    lines = gpufair("cases/b.yaml").stdout.splitlines()
    assert lines[0] == "two wait for four GPUs    cases/b.yaml, 2026-06-01T12:00:00.000Z"
    assert lines[1].split() == ["starts", "team", "tier", "pool", "GPUs", "class", "points", "on"]
    assert lines[2].split()[:6] == ["q2", "red", "standard", "t4", "4", "guaranteed"]
    assert lines[3].split()[:2] == ["waits", "team"]
    assert lines[4].split()[:6] == ["q1", "blue", "standard", "t4", "4", "borrowing"]
    assert "insufficient_gpus: needs 4 t4" in lines[4]
    assert lines[-1].startswith("--check compares with what a case expects")


def test_a_case_in_which_nothing_happens(here: Path, gpufair: Decide) -> None:
    (here / "idle.yaml").write_text(IDLE)
    lines = gpufair("idle.yaml").stdout.splitlines()
    assert lines[:2] == ["idle.yaml, 2026-06-01T12:00:00.000Z", "No run waits, so none starts."]


def test_a_case_as_data(here: Path, gpufair: Decide) -> None:
    data = json.loads(gpufair("cases/b.yaml", "--json").stdout)
    assert (data["file"], data["name"]) == ("cases/b.yaml", "two wait for four GPUs")
    assert data["now"] == "2026-06-01T12:00:00.000Z"
    (start,) = data["start"]
    assert {key: start[key] for key in ("id", "pool", "gpus", "nodes", "class")} == {
        "id": "q2",
        "pool": "t4",
        "gpus": 4,
        "nodes": {},
        "class": "guaranteed",
    }
    assert start["score"] == pytest.approx(sum(start["points"].values()), abs=0.01)
    assert [(each["id"], each["reason"]) for each in data["wait"]] == [("q1", "insufficient_gpus")]
    assert data["preempt"] == data["reservations"] == data["withdrawn"] == data["renewed"] == []
    assert "met" not in data


PREEMPTS = CASE.replace("teams:", "preemption: {mode: auto}\n  teams:")
TOO_LARGE = CASE.replace("gpus: 4, submitted: -5m", "gpus: 8, submitted: -5m")


def test_a_request_that_would_have_been_refused(here: Path, gpufair: Decide) -> None:
    """It is said so; what is decided, and compared, stays the same: a policy change leaves such ones."""
    (here / "large.yaml").write_text(TOO_LARGE)
    lines = gpufair("large.yaml").stdout.splitlines()
    assert lines[2].split()[0] == "q2", "it starts as if the other were not there"
    assert lines[3].split() == ["refused", "team", "tier", "pool", "asks", "why"]
    assert lines[4].split()[:5] == ["q1", "blue", "standard", "t4", "8"]
    assert (
        "exceeds_pool: it asks for 8 t4, and t4 has 4 GPUs in all. Ask for fewer GPUs" in lines[4]
    )
    assert not any(line.startswith("waits") for line in lines)
    data = json.loads(gpufair("large.yaml", "--json").stdout)
    (refused,) = data["refused"]
    assert (refused["id"], refused["code"]) == ("q1", "exceeds_pool")
    assert refused["message"].startswith("it asks for 8 t4")
    assert [(each["id"], each["reason"]) for each in data["wait"]] == [("q1", "insufficient_gpus")]
    gpufair("large.yaml", "--check")


@pytest.mark.parametrize(
    ("project", "size", "says"),
    [
        (
            "project: serach, ",
            "gpus: 4",
            "unknown project of team red 'serach'; did you mean 'search'?",
        ),
        (
            "",
            "gpus: 4, gpus_per_node: 3",
            "it asks for 4 GPUs, which cannot be split into 3 on each node",
        ),
    ],
)
def test_what_starts_and_no_run_may_ask_for(
    here: Path, gpufair: Decide, project: str, size: str, says: str
) -> None:
    case = CASE.replace("red: {", "red: {projects: {search: {}}, ")
    row = f"team: red, {project}tier: standard, pool: t4, {size}, submitted"
    case = case.replace("team: red, tier: standard, pool: t4, gpus: 4, submitted", row)
    (here / "invalid.yaml").write_text(case)
    lines = [line.split() for line in gpufair("invalid.yaml").stdout.splitlines()]
    assert lines[2][0] == "q2", "it starts"
    assert "invalid_request:" in next(line for line in lines[4:] if line[:1] == ["q2"])
    data = json.loads(gpufair("invalid.yaml", "--json").stdout)
    assert [each["id"] for each in data["start"]] == ["q2"]
    (refused,) = data["refused"]
    assert (refused["id"], refused["code"]) == ("q2", "invalid_request")
    assert refused["message"].startswith(says)
    gpufair("invalid.yaml", "--check")


def test_a_policy_in_a_file_of_its_own(here: Path, gpufair: Decide) -> None:
    """Its path is looked up from the folder of the case."""
    begin, end = CASE.index("policy:"), CASE.index("now:")
    (here / "cases" / "b.yaml").write_text(f"{CASE[:begin]}policy: ../gpufair.yaml\n{CASE[end:]}")
    (here / "gpufair.yaml").write_text(
        "pools: {t4: {gpus: 4}}\nteams: {red: {quota: {t4: 4}}, blue: {}}\n"
    )
    assert gpufair("cases", "--check").stdout.splitlines()[-1] == "2 cases: 2 met"
    (here / "gpufair.yaml").write_text("pools: {t4: {gpus: 4}}\nteams: {red: {qouta: {t4: 4}}}\n")
    assert gpufair("cases/b.yaml", code=2).stderr.splitlines() == [
        "cases/b.yaml: 1 error",
        "  policy  ../gpufair.yaml: teams.red.qouta: unknown key; did you mean 'quota'?",
    ]
    (here / "cases" / "b.yaml").write_text(f"{CASE[:begin]}policy: rules.yaml\n{CASE[end:]}")
    rules = "pools: {t4: {gpus: 4}}\nteams: {red: {quota: {t4: 4}}, blue: {}}\n"
    (here / "cases" / "rules.yaml").write_text(rules)
    said = gpufair("cases", "--check").stdout.splitlines()[-1]
    assert said == "2 cases: 2 met", "it is no case, though it lies among them"
    assert "is missing" in gpufair("cases/rules.yaml", code=2).stderr


def test_a_policy_file_that_is_not_there(here: Path, gpufair: Decide) -> None:
    begin, end = CASE.index("policy:"), CASE.index("now:")
    (here / "cases" / "b.yaml").write_text(f"{CASE[:begin]}policy: ../gpufair.yaml\n{CASE[end:]}")
    assert "policy  ../gpufair.yaml: no such file" in gpufair("cases/b.yaml", code=2).stderr


def test_a_case_that_is_met(here: Path, gpufair: Decide) -> None:
    assert gpufair("cases/b.yaml", "--check").stdout.splitlines() == [
        "met      cases/b.yaml  two wait for four GPUs",
        "1 case: 1 met",
    ]
    assert json.loads(gpufair("cases/b.yaml", "--check", "--json").stdout)["met"] is True


def test_a_case_that_is_not_met(here: Path, gpufair: Decide) -> None:
    (here / "c.yaml").write_text(UNMET)
    assert gpufair("c.yaml", "--check", code=1).stdout.splitlines() == [
        "not met  c.yaml  both start for four GPUs",
        "           start: expected [q1, q2], found [q2]",
        "1 case: 0 met, 1 not met",
    ]
    data = json.loads(gpufair("c.yaml", "--check", "--json", code=1).stdout)
    assert data["met"] is False
    assert data["differences"] == [{"key": "start", "expected": ["q1", "q2"], "found": ["q2"]}]
    assert gpufair("c.yaml").stdout


def test_all_cases_of_a_folder_in_order(here: Path, gpufair: Decide) -> None:
    shown = gpufair("cases").stdout
    assert shown.index("cases/b.yaml") < shown.index("cases/deeper/a.yml")
    assert "notes.txt" not in shown
    assert gpufair("cases", "--check").stdout.splitlines() == [
        "met      cases/b.yaml  two wait for four GPUs",
        "met      cases/deeper/a.yml  two wait for four GPUs",
        "2 cases: 2 met",
    ]
    data = json.loads(gpufair("cases", "--json").stdout)
    assert [each["file"] for each in data["cases"]] == ["cases/b.yaml", "cases/deeper/a.yml"]
    assert len(json.loads(gpufair("cases/deeper", "--json").stdout)["cases"]) == 1


def test_a_bad_file_does_not_keep_the_others_from_being_decided(
    here: Path, gpufair: Decide
) -> None:
    (here / "cases" / "a.yaml").write_text(BROKEN)
    (here / "cases" / "c.yaml").write_text(UNMET)
    result = gpufair("cases", "--check", code=2)
    assert result.stderr.splitlines() == [
        "cases/a.yaml: 2 errors",
        "  queued[1].submitted  is missing",
        "  queued[1].submited   unknown key; did you mean 'submitted'?",
    ]
    lines = result.stdout.splitlines()
    assert lines[0] == "no case  cases/a.yaml"
    assert lines[-1] == "4 cases: 2 met, 1 not met, 1 cannot be read"
    assert "q2" in gpufair("cases", code=2).stdout
    data = json.loads(gpufair("cases", "--json", code=2).stdout)
    assert data["cases"][0]["file"] == "cases/a.yaml"
    assert data["cases"][0]["problems"][0] == {
        "path": "queued[1].submitted",
        "message": "is missing",
    }
    assert gpufair("cases/a.yaml", code=2).stdout == ""


def test_a_case_that_expects_nothing_in_particular_is_met(here: Path, gpufair: Decide) -> None:
    (here / "idle.yaml").write_text(f"{IDLE}expect: {{}}\n")
    assert gpufair("idle.yaml", "--check").stdout.splitlines()[-1] == "1 case: 1 met"


@pytest.mark.parametrize("expect", ["", "expect:\n"])
def test_a_check_of_nothing_is_an_error(here: Path, gpufair: Decide, expect: str) -> None:
    (here / "idle.yaml").write_text(IDLE + expect)
    said = gpufair("idle.yaml", "--check", code=2).stderr
    assert said.splitlines() == [
        "idle.yaml: 1 error",
        "  expect  is missing; add what must start, preempt, wait or be in use, or {} to compare nothing",
    ]


def test_where_there_is_no_case(here: Path, gpufair: Decide) -> None:
    said = gpufair("gone.yaml", code=2).stderr
    assert said == "gone.yaml: 1 error\n  no such file; give a case, or a folder of cases\n"
    (here / "empty").mkdir()
    said = gpufair("empty", code=2).stderr
    assert "empty: 1 error" in said
    assert "no file that ends in .yaml or .yml" in said
    (here / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "binary.yaml: 1 error" in gpufair("binary.yaml", code=2).stderr
    assert "Missing argument" in gpufair(code=2).stderr


def test_text_in_a_case_acts_on_no_terminal(here: Path, gpufair: Decide) -> None:
    odd = CASE.replace("two wait for four GPUs", '"two\\nwait \\u202e"')
    (here / "odd.yaml").write_text(odd.replace("q2", '"[red]\\u202e"'))
    for words in (["odd.yaml"], ["odd.yaml", "--check"], ["odd.yaml", "--json"]):
        said = gpufair(*words).stdout
        assert all(line.isprintable() for line in said.splitlines())
        assert "two\\nwait \\u202e" in said


def test_who_has_to_leave_and_what_is_reserved(
    here: Path, gpufair: Decide, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = "{id: r1, team: blue, tier: standard, pool: t4, gpus: 4, started: -2h}"
    (here / "held.yaml").write_text(CASE.replace("queued:", f"running: [{lease}]\nqueued:"))
    points = Points(2000.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def plan(policy: Policy, state: State, now: float) -> Plan:
        q1, q2 = state.requests
        waits = ("t4", Class.GUARANTEED, 1.0, points)
        return Plan(
            starts=[],
            waiting=[
                Waiting([q2], "approval", "a person must agree", *waits),
                Waiting([q1], "insufficient_gpus", "0 free", *waits),
            ],
            preemptions=[
                Preemption(q2, Promise("t4", 4000), [Victim(state.leases[0], "reclaim")], True)
            ],
            reservations=[
                Reservation(q2, "t4", 4000, {}, None, Class.GUARANTEED),
                Reservation(q1, "t4", 4000, {"n1": 4000}, now + 60, Class.BORROWING, of_quota=True),
            ],
            withdrawn=["q3"],
            renewed=["r2"],
        )

    monkeypatch.setattr(decide_module, "plan", plan)
    said = [" ".join(line.split()) for line in gpufair("held.yaml").stdout.splitlines()]
    assert "r1 blue standard t4 4 reclaim, after approval q2 4" in said
    assert "q2 t4 4 guaranteed ?" in said
    assert any(line.startswith("q1 t4 4 of its quota borrowing") for line in said)
    assert "the promise to q3 ends" in said
    assert "r2 may go on borrowing, since no run waits for these GPUs" in said
