"""What a person reads in ``gpufair policy`` and ``gpufair init``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from cli_samples import POLICY, Filling, asked, run_id
from click.testing import Result
from dagster import DagsterInstance

from dagster_gpufair import GpuFairRunCoordinator
from dagster_gpufair.ledger import status
from dagster_gpufair.ledger.status import POLICY_FILE
from dagster_gpufair.policy.starter import starter_text

Gpufair = Callable[..., Result]

BROKEN = POLICY.replace("t4: 2}}", "t4: 2}, qouta: {}}", 1)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without any Dagster instance."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return folder


def test_a_sound_file(here: Path, gpufair: Gpufair) -> None:
    (here / "new.yaml").write_text(POLICY)
    assert (
        gpufair("policy", "check", "new.yaml").stdout == "new.yaml: no errors, 2 pools, 3 teams\n"
    )


def test_a_sound_file_with_notes(here: Path, gpufair: Gpufair) -> None:
    (here / "new.yaml").write_text(f"{POLICY}reclaim: {{mode: auto}}\n")
    said = gpufair("policy", "check", "new.yaml").stdout
    assert "  reclaim  has no effect in this version: nothing watches for idle GPUs" in said
    data = json.loads(gpufair("policy", "check", "new.yaml", "--json").stdout)
    assert (data["file"], data["ok"]) == ("new.yaml", True)
    assert data["problems"][0]["severity"] == "note"
    assert data["would_stop"] is None, "there is no instance to ask"
    assert "would be stopped" not in said


def test_what_a_new_policy_would_stop_now(queue: Filling, gpufair: Gpufair) -> None:
    Path("new.yaml").write_text(f"{POLICY}preemption: {{mode: approval}}\n")
    said = gpufair("policy", "check", "new.yaml").stdout
    assert said.splitlines()[-1] == "By this policy, no run would be stopped now."
    queue.run(asked(1, 8, ago=90, team="vision"), asked(2, 8, ago=90, team="speech"), ago=90)
    queue.submit(asked(3, 8, ago=5))
    lines = gpufair("policy", "check", "new.yaml").stdout.splitlines()
    assert lines[1:] == [
        "By this policy, 1 run would be stopped now:",
        "  for 00000003 (nlp, standard, 8 GPUs), after approval",
        "    00000002 (speech, standard, 8 GPUs): reclaim",
    ]
    data = json.loads(gpufair("policy", "check", "new.yaml", "--json").stdout)
    assert data["would_stop"][0]["for"]["run"] == run_id(3)
    assert data["would_stop"][0]["approval"] is True
    (stopped,) = data["would_stop"][0]["stops"]
    assert (stopped["run"], stopped["rule"]) == (run_id(2), "reclaim")


def test_a_policy_that_stops_nothing_is_not_tried(queue: Filling, gpufair: Gpufair) -> None:
    Path("new.yaml").write_text(POLICY)
    assert "stopped" not in gpufair("policy", "check", "new.yaml").stdout


def test_a_code_location_that_nobody_has(here: Path, gpufair: Gpufair) -> None:
    (here / "new.yaml").write_text(POLICY.replace("nlp: {", "nlp: {code_locations: [nlpp], ", 1))
    assert "code_locations" not in gpufair("policy", "check", "new.yaml").stdout
    (here / "workspace.yaml").write_text("load_from: [{python_module: nlp}]")
    note = "'nlpp' may be misspelt: it is not in the workspace, and no GPU run has come from it yet"
    assert note in gpufair("policy", "check", "new.yaml").stdout
    (here / "other.yaml").write_text("load_from: [{python_module: nlpp}]")
    said = gpufair("policy", "check", "new.yaml", "-w", "other.yaml").stdout
    assert "code_locations" not in said
    (here / "other.yaml").write_text("load_form: []")
    said = gpufair("policy", "check", "new.yaml", "-w", "other.yaml", code=1).stderr
    assert "The workspace file other.yaml cannot be read: " in said


def test_a_code_location_that_gpu_runs_came_from(queue: Filling, gpufair: Gpufair) -> None:
    queue.submit(asked(1, location="nlp"))
    Path("new.yaml").write_text(POLICY.replace("nlp: {", "nlp: {code_locations: [nlpp, nlp], ", 1))
    said = gpufair("policy", "check", "new.yaml").stdout
    assert "'nlpp' may be misspelt: no GPU run has come from it yet; did you mean 'nlp'?" in said


def test_the_runs_that_a_change_leaves_behind(queue: Filling, gpufair: Gpufair) -> None:
    queue.run(asked(1, 4, ago=9, team="vision"), ago=9)
    queue.submit(asked(2, 4, ago=5, team="vision"), asked(3, 4, ago=5, team="vision"))
    Path("new.yaml").write_text(POLICY.replace("vision:", "cv:"))
    lines = gpufair("policy", "check", "new.yaml").stdout.splitlines()
    assert lines[1:] == [
        "This policy would leave 3 runs behind:",
        "  team vision is gone",
        "    1 run goes on until it ends: 00000001",
        "    2 runs wait and cannot start: 00000002, 00000003",
        "Keep what is gone in the file until these runs have ended, or cancel them and launch them again "
        "with other tags.",
    ]
    data = json.loads(gpufair("policy", "check", "new.yaml", "--json").stdout)
    (left,) = data["left_behind"]
    assert left == {
        "path": "teams.vision",
        "message": "team vision is gone",
        "holding": [run_id(1)],
        "waiting": [run_id(2), run_id(3)],
    }


def test_a_broken_file(here: Path, gpufair: Gpufair) -> None:
    (here / "new.yaml").write_text(BROKEN)
    said = gpufair("policy", "check", "new.yaml", code=1).stdout
    assert said.splitlines()[0] == "new.yaml: 1 error"
    assert "  teams.vision.qouta  unknown key; did you mean 'quota'?" in said
    data = json.loads(gpufair("policy", "check", "new.yaml", "--json", code=1).stdout)
    assert data["ok"] is False
    assert data["problems"] == [
        {
            "path": "teams.vision.qouta",
            "message": "unknown key; did you mean 'quota'?",
            "severity": "error",
        }
    ]


@pytest.mark.parametrize("hostile", ["[red]x[/red]", "\\e[31m", "a\\nb", "\\u202e"])
def test_a_file_with_hostile_names(here: Path, gpufair: Gpufair, hostile: str) -> None:
    (here / "new.yaml").write_text(f'pools: {{"{hostile}": {{gpus: 8}}}}\nteams: {{}}\n')
    said = gpufair("policy", "check", "new.yaml", code=1).stdout
    assert all(line.isprintable() for line in said.splitlines())


def test_a_file_that_is_not_there(here: Path, gpufair: Gpufair) -> None:
    said = gpufair("policy", "check", "new.yaml", code=1).stdout
    assert said == "new.yaml: 1 error\n  no such file; `gpufair init` writes one\n"


def test_the_file_here_without_an_instance(here: Path, gpufair: Gpufair) -> None:
    assert "DAGSTER_HOME is not set" in gpufair("policy", "check", code=1).stderr
    (here / "gpufair.yaml").write_text(POLICY)
    assert gpufair("policy", "check").stdout.startswith("gpufair.yaml: no errors")


def test_the_file_that_the_instance_follows(
    queue: Filling, gpufair: Gpufair, tmp_path: Path
) -> None:
    followed = tmp_path / "gpufair.yaml"
    followed.write_text(BROKEN)
    said = gpufair("policy", "check", code=1).stdout
    assert said.startswith(f"{followed}: 1 error, nothing changed (v1 stays in force)\n")
    followed.write_text(POLICY)
    assert gpufair("policy", "check").stdout.startswith(f"{followed}: no errors")


def test_the_policy_in_force(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(POLICY + "grants: []\n")
    said = gpufair("policy", "show").stdout
    assert said.startswith("policy v2, in force since ")
    assert "adopted by daemon on here pid:[7] from gpufair.yaml" in said
    assert "h100 has 16 GPUs on 2 nodes, 12 of them in quotas." in said
    assert (
        "nlp is guaranteed 8 of 16 h100, may borrow 4 more, and lends all it does not use." in said
    )
    assert gpufair("policy", "show", "--yaml").stdout == POLICY + "grants: []\n"
    data = json.loads(gpufair("policy", "show", "--json").stdout)
    assert (data["version"], data["source"], data["file_trouble"]) == (2, "gpufair.yaml", None)
    assert data["policy"]["pools"]["h100"]["nodes"] == {"h1": 8, "h2": 8}
    assert data["policy"]["teams"]["speech"]["lend_limit"] == {"t4": 1}
    assert "--yaml and --json" in gpufair("policy", "show", "--yaml", "--json", code=2).stderr


def test_a_newer_file_that_cannot_take_effect(queue: Filling, gpufair: Gpufair) -> None:
    trouble = {
        "file": "gpufair.yaml",
        "summary": "gpufair.yaml has 1 error (unknown key)",
        "problems": [{"path": "teams.vision.qouta", "message": "unknown key"}],
    }
    with queue.ledger.writing() as session:
        status.put(session, POLICY_FILE, trouble, 0.0)
    said = gpufair("policy", "show").stdout
    assert "gpufair.yaml cannot take effect. Policy v1 stays in force:" in said
    assert "  teams.vision.qouta  unknown key" in said
    assert json.loads(gpufair("policy", "show", "--json").stdout)["file_trouble"] == trouble


def test_the_history(queue: Filling, gpufair: Gpufair) -> None:
    queue.adopt(POLICY + "grants: []\n", by="first submission", ago=1)
    lines = [line.split() for line in gpufair("policy", "history").stdout.splitlines()]
    assert [words[0] for words in lines[1:3]] == ["v2", "v1"]
    assert lines[1][3:] == ["first", "submission", "gpufair.yaml"]
    versions = json.loads(gpufair("policy", "history", "--json").stdout)["versions"]
    assert [version["version"] for version in versions] == [2, 1]
    assert set(versions[0]) == {"version", "since", "by", "source", "digest"}


def test_the_schema(gpufair: Gpufair) -> None:
    schema = json.loads(gpufair("policy", "schema").stdout)
    assert schema["title"] == "gpufair policy"
    assert "quota" in schema["$defs"]["Team"]["properties"]


def test_a_start(here: Path, gpufair: Gpufair) -> None:
    said = gpufair("init").stdout
    assert (here / "gpufair.yaml").read_text() == starter_text()
    assert "Then: gpufair policy check gpufair.yaml" in said
    assert "no errors" in gpufair("policy", "check", "gpufair.yaml").stdout
    lines = said.splitlines()
    at = lines.index("run_coordinator:")
    written = "\n".join(lines[at : at + 4])
    assert yaml.safe_load(written)["run_coordinator"]["config"] == {
        "policy": "gpufair.yaml",
        "max_concurrent_runs": -1,
        "dequeue_interval_seconds": 1,
    }
    (here / "dagster.yaml").write_text(written)
    with DagsterInstance.from_config(str(here)) as instance:
        assert isinstance(instance.run_coordinator, GpuFairRunCoordinator)
        assert instance.run_coordinator.policy_watch.path == here / "gpufair.yaml"


def test_a_start_overwrites_nothing(here: Path, gpufair: Gpufair) -> None:
    (here / "gpufair.yaml").write_text("mine")
    said = gpufair("init", code=1).stderr
    assert "gpufair.yaml exists already and was not changed." in said
    assert (here / "gpufair.yaml").read_text() == "mine"


def test_a_start_in_a_new_folder(here: Path, gpufair: Gpufair) -> None:
    said = gpufair("init", "deploy/gpus").stdout
    assert "Then: gpufair policy check deploy/gpus/gpufair.yaml" in said
    assert (here / "deploy" / "gpus" / "gpufair.yaml").exists()
    (here / "file").write_text("")
    assert "file exists already" in gpufair("init", "file", code=1).stderr
    assert "cannot be written" in gpufair("init", "file/deeper", code=1).stderr
