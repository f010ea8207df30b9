"""The policy file as people treat it: missing, broken, mended, changed under running and waiting runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gate_stage import POLICY, Stage

from dagster_gpufair.cli.main import cli
from dagster_gpufair.engine import policy_file
from dagster_gpufair.ledger import policies

SMALLER = POLICY.replace("n1: 8", "n1: 6").replace("quota: {a100: 4", "quota: {a100: 3")


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, "no such file"),
        (b"", "is empty"),
        (b"\x7fELF\x00\x01\xff\xfe", "gpufair.yaml has"),
        (
            b"pools: {a100: {gpus: many}}\nteams: {red: {}}",
            "(pools.a100.gpus: 'many' is not a number of GPUs)",
        ),
    ],
    ids=["missing", "empty", "binary", "broken"],
)
def test_no_usable_file_at_the_first_start(
    open_stage: Callable[..., Stage], found: bytes | None, says: str
) -> None:
    stage = open_stage(found)
    waits = stage.submit(team="red", pool="a100", gpus=4)
    cpu = stage.submit()

    stage.pass_()
    stage.pass_()

    assert stage.launched == [cpu]
    assert stage.status(waits) == "QUEUED"
    assert stage.tags(waits)["state"] == "waiting"
    assert stage.tags(waits)["reason"] == "environment · not yet admitted · policy file broken"
    assert stage.events(waits).count("No GPU policy is in force") == 1
    assert says in stage.events(waits)
    assert any(says in message for message in stage.log.said())
    assert says in stage.said("policy_file")["summary"]

    stage.write_policy(POLICY)
    stage.pass_()
    stage.pass_()

    assert stage.launched == [cpu, waits]
    assert stage.said("policy_file") is None
    stage.assert_nothing_lost()


def test_a_changed_file_is_in_force_within_two_passes(stage: Stage) -> None:
    waits = stage.submit(team="red", pool="t4", gpus=4)
    stage.enqueue(team="blue", pool="t4", gpus=1)
    stage.write_policy(POLICY + "borrowing: {mode: off}\n")
    stage.pass_()
    assert stage.reason(waits) == "quota_exhausted"

    stage.write_policy(POLICY.replace("t4: 2", "t4: 4") + "borrowing: {mode: off}\n")
    stage.pass_()
    stage.pass_()

    assert stage.launched == [waits]
    assert stage.leases(waits)[0].policy_version == 3


def test_a_file_of_the_same_size_and_time_is_noticed(stage: Stage) -> None:
    """As when an older one is restored with its time."""
    stage.pass_()
    before = stage.policy_file.stat()

    stage.write_policy(POLICY.replace("t4: 2", "t4: 3"))
    os.utime(stage.policy_file, ns=(before.st_atime_ns, before.st_mtime_ns))
    waits = stage.submit(team="red", pool="t4", gpus=3)
    stage.pass_()

    assert stage.policy_file.stat().st_size == before.st_size
    assert stage.leases(waits)[0].policy_version == 2


def test_a_broken_change_changes_nothing_and_is_said_until_it_is_mended(
    stage: Stage,
) -> None:
    runs = stage.submit(team="red", pool="a100", gpus=4)
    waits = stage.submit(team="red", pool="a100", gpus=6)
    stage.pass_()
    stage.log.said()

    stage.write_policy(POLICY.replace("quota: {a100: 4}", "quota: {a1000: 4}"))
    stage.pass_()
    starts = stage.submit(team="blue", pool="a100", gpus=4)
    stage.pass_()
    stage.pass_()

    assert stage.launched == [runs, starts], "the policy before it is still in force"
    assert stage.leases(starts)[0].policy_version == 1
    trouble = (
        "gpufair.yaml has 1 error (teams.blue.quota.a1000: "
        "unknown pool 'a1000'; did you mean 'a100'? (known: a100, t4))"
    )
    assert stage.said("policy_file")["summary"] == trouble
    assert stage.log.said() == [f"{trouble}. Policy v1 stays in force."], "and it is said once"
    assert stage.tags(waits)["reason"].endswith(" · policy file broken")
    assert stage.events(waits).count(f"The policy file changes nothing now: {trouble}.") == 1

    stage.restart_daemon()
    stage.pass_()
    assert stage.log.said() == [f"{trouble}. Policy v1 stays in force."], "a new daemon says it too"

    stage.write_policy(POLICY)
    stage.pass_()
    assert stage.said("policy_file") is None
    assert stage.log.said() == []
    assert "broken" not in stage.tags(waits)["reason"]
    assert stage.reason(waits) == "insufficient_gpus"


def test_a_file_that_was_deleted_can_be_written_again_from_the_ledger(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [stage.submit(team="red", pool="a100", gpus=8) for _ in range(2)][1]
    stage.pass_()
    stage.log.said()
    stage.policy_file.unlink()

    stage.pass_()
    stage.pass_()

    restores = f"gpufair policy show --yaml > {stage.policy_file}"
    trouble = f"gpufair.yaml is missing; `{restores}` writes policy v1 there"
    assert stage.log.said() == [f"{trouble}. Policy v1 stays in force."], "one cause, said once"
    assert f"The policy file changes nothing now: {trouble}." in stage.events(waits)
    assert stage.leases(stage.launched[0])[0].policy_version == 1

    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    told = CliRunner().invoke(cli, ["policy", "show"], env={"COLUMNS": "300"}).stdout
    assert f"no such file; `{restores}` writes policy v1 there" in told
    assert "gpufair init" not in told
    written = CliRunner().invoke(cli, ["policy", "show", "--yaml"]).stdout
    stage.policy_file.write_text(written)
    stage.pass_()
    assert stage.said("policy_file") is None
    with stage.ledger.reading() as session:
        in_force = policies.in_force(session)
    assert in_force is not None and in_force.version == 1, "the same file is no new version"


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


@pytest.mark.parametrize(
    ("put", "says"),
    [
        (_pipe, "is a named pipe; give a file"),
        (_folder, "is a folder; give the policy file in it"),
        (_endless, "is a device; give a file"),
        (_huge, "is larger than 1 MiB, the most that a policy may have; is it the right file?"),
    ],
    ids=["pipe", "folder", "endless", "huge"],
)
def test_what_is_no_file_in_place_of_the_policy_stops_nobody(
    stage: Stage, put: Callable[[Path], None], says: str
) -> None:
    stage.pass_()
    stage.policy_file.unlink()
    put(stage.policy_file)

    starts = stage.submit(team="red", pool="a100", gpus=4)
    stage.pass_()

    assert stage.launched == [starts], "the policy before it is still in force"
    assert stage.said("policy_file")["summary"] == f"gpufair.yaml has 1 error ({says})"


@pytest.mark.parametrize("put", [_pipe, _folder, _endless, _huge])
def test_what_is_no_file_at_the_first_submission_keeps_the_run_waiting_only(
    open_stage: Callable[..., Stage], put: Callable[[Path], None]
) -> None:
    stage = open_stage(None)
    put(stage.policy_file)

    waits = stage.submit(team="red", pool="a100", gpus=4)
    cpu = stage.submit()
    stage.pass_()

    assert stage.launched == [cpu]
    assert stage.status(waits) == "QUEUED"


class Mount:
    """A network mount under the policy file that may stop to answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str):
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0
        self._real: Callable[..., Any] = getattr(policy_file, call)
        monkeypatch.setattr(policy_file, call, self._ask)

    def hang(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(policy_file, "_PATIENCE", 0.05)
        self.asked = 0
        self.answers.clear()

    def answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(policy_file, "_PATIENCE", 60.0)
        self.answers.set()

    def _ask(self, *args: Any) -> Any:
        self.asked += 1
        self.answers.wait()
        return self._real(*args)


@pytest.fixture(params=["_stamp", "read_policy"], ids=["looked at", "read"])
def mount(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    """A mount that may hang when the file on it is looked at, or when it is read."""
    mount = Mount(monkeypatch, request.param)
    yield mount
    mount.answers.set()


def test_a_mount_that_hangs_stops_nobody(
    stage: Stage, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = stage.submit(team="red", pool="a100", gpus=4)
    waits = stage.submit(team="red", pool="a100", gpus=6)
    stage.pass_()
    stage.log.said()

    mount.hang(monkeypatch)
    stage.write_policy(POLICY.replace("gpus: 4", "gpus: 3"))
    stage.pass_()
    starts = stage.submit(team="blue", pool="a100", gpus=4)
    stage.pass_()
    stage.pass_()

    assert stage.launched == [runs, starts], "the policy before it is still in force"
    assert stage.leases(starts)[0].policy_version == 1
    trouble = stage.said("policy_file")["summary"]
    assert trouble.startswith("gpufair.yaml has 1 error (reading it hangs since 20")
    assert trouble.endswith(" UTC; check the disk or the mount that it is on)")
    assert stage.log.said() == [f"{trouble}. Policy v1 stays in force."]
    assert stage.tags(waits)["reason"].endswith(" · policy file broken")
    assert mount.asked == 1, "nobody asks a second time while the first hangs"

    mount.answer(monkeypatch)
    stage.pass_until(lambda: stage.said("policy_file") is None)
    after = stage.submit(team="blue", pool="t4", gpus=1)
    stage.pass_()
    assert stage.leases(after)[0].policy_version == 2
    assert "broken" not in stage.tags(waits)["reason"]


def test_a_mount_that_hangs_at_the_first_start(
    open_stage: Callable[..., Stage], mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = open_stage()
    mount.hang(monkeypatch)

    waits = stage.submit(team="red", pool="a100", gpus=4)
    cpu = stage.submit()
    stage.pass_()

    assert stage.launched == [cpu]
    assert "reading it hangs since 20" in stage.events(waits)

    mount.answer(monkeypatch)
    stage.pass_until(lambda: waits in stage.launched)


def test_a_policy_is_adopted_later_if_the_ledger_could_not_be_written(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.pass_()
    stage.write_policy(POLICY.replace("t4: 2", "t4: 4"))
    with monkeypatch.context() as broken:
        broken.setattr("dagster_gpufair.engine.engine.nodes.cordoned_by_pool", _out_of_order)
        assert stage.troubled_pass() != []

    starts = stage.submit(team="red", pool="t4", gpus=4)
    stage.pass_()
    assert stage.leases(starts)[0].policy_version == 2


def test_a_policy_of_another_release_that_cannot_be_read_gives_way_to_a_good_file(
    stage: Stage,
) -> None:
    with stage.ledger.writing() as session:
        policies.adopt(session, POLICY + "preemption: {grace: 300}", "old", "file", "ann", 1.0)
    waits = stage.submit(team="red", pool="a100", gpus=4)
    stage.pass_()
    stage.pass_()
    assert stage.launched == [waits]


def _out_of_order(*_: object) -> None:
    raise RuntimeError("the database is gone")


def test_a_team_that_is_removed_while_it_waits_and_runs(stage: Stage) -> None:
    runs = stage.submit(team="red", pool="a100", gpus=4)
    waits = stage.submit(team="red", pool="a100", gpus=6)
    stage.pass_()
    assert stage.launched == [runs]

    stage.write_policy("pools: {a100: {nodes: {n1: 8}}}\nteams: {blue: {quota: {a100: 8}}}")
    blue = stage.submit(team="blue", pool="a100", gpus=8)
    stage.pass_()
    assert stage.reason(waits) == "quota_exhausted"
    assert "team red is not in the policy (teams: blue)" in stage.events(waits)
    assert stage.reason(blue) == "insufficient_gpus", (
        "what is left of the team still holds its GPUs"
    )

    stage.succeed(runs)
    stage.pass_()
    assert stage.launched == [runs, blue]
    stage.write_policy(POLICY)
    stage.succeed(blue)
    stage.pass_()
    assert stage.launched == [runs, blue, waits], "it was kept all the time"
    stage.assert_nothing_lost()


def test_a_pool_that_is_removed_while_its_runs_wait_and_run(stage: Stage) -> None:
    runs = stage.submit(team="red", pool="t4", gpus=2)
    waits = stage.submit(team="red", pool="t4", gpus=4)
    stage.pass_()

    stage.write_policy("pools: {a100: {nodes: {n1: 8}}}\nteams: {red: {quota: {a100: 8}}}")
    other = stage.submit(team="red", pool="a100", gpus=8)
    stage.pass_()

    assert stage.launched == [runs, other]
    assert stage.status(waits) == "QUEUED"
    assert "is not in the policy (pools: a100)" in stage.events(waits)
    stage.succeed(runs)
    stage.pass_()
    assert stage.holders() == {other}
    stage.write_policy(POLICY)
    stage.pass_()
    assert stage.launched == [runs, other, waits]


def test_nothing_starts_in_a_pool_that_shrank_until_it_fits(stage: Stage) -> None:
    first = stage.submit(team="red", pool="a100", gpus=4)
    second = stage.submit(team="blue", pool="a100", gpus=4)
    stage.pass_()
    assert stage.launched == [first, second]

    stage.write_policy(SMALLER)
    waits = stage.submit(team="red", pool="a100", gpus=1)
    gang = stage.submit(team="red", pool="a100", gpus=6)
    stage.pass_()
    assert stage.launched == [first, second], "8 of 6 are in use"
    assert stage.reason(waits) == "insufficient_gpus"

    stage.succeed(first)
    stage.pass_()
    assert stage.launched == [first, second, waits]
    stage.succeed(second)
    stage.succeed(waits)
    stage.pass_()
    assert stage.launched == [first, second, waits, gang]
    stage.assert_nothing_lost()


def test_a_request_that_no_longer_fits_the_policy_waits_and_says_so(stage: Stage) -> None:
    gang = stage.submit(team="red", pool="a100", gpus=8)
    holds = stage.submit(team="blue", pool="a100", gpus=4)
    stage.pass_()
    assert stage.launched == [holds]

    stage.write_policy(SMALLER)
    stage.succeed(holds)
    stage.pass_()

    assert stage.status(gang) == "QUEUED"
    assert "6 of 6 in all" in stage.events(gang)
