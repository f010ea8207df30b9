"""The daemon's side of channels, on real folders: what runs find, what is heard, and what goes wrong."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_gpufair.gate.channels import channels as module
from dagster_gpufair.gate.channels.channels import Channels
from dagster_gpufair.gate.channels.folder import Folder
from dagster_gpufair.gate.channels.reports import LONGEST_BUSY
from dagster_gpufair.gate.channels.steps import may_stop_now
from dagster_gpufair.gate.channels.words import Heard, Lease, Notice
from dagster_gpufair.preemption.files import LARGEST

SINCE = 1_800_000_000.0
LEASE = Lease(request="q1", pool="h100", gpus=500, since=SINCE)
NOTICE = Notice(SINCE + 900, "reclaim", "finetune (nlp, 8 GPUs)")
LONG = 30.0
"""Seconds that a test waits for what is certain to come."""


class Site:
    """A daemon's channels in a folder, and the code of a run that writes into its own."""

    def __init__(self, root: Path):
        self.root = root
        self.now = SINCE + 600
        self.logged: list[str] = []
        self.looked: list[str] = []
        """The runs whose channels were looked at, in order."""
        self.daemon = self._start()

    def restart(self) -> Channels:
        """Another daemon, which knows nothing yet; the first one is dead."""
        self.end()
        return self._start()

    def end(self) -> None:
        """Have the daemon do nothing any more."""
        with self.daemon._changed:
            self.daemon._channels.clear()
            self.daemon._changed.notify_all()
        assert self.daemon.wait_for(lambda: self.daemon._threads == 0, LONG)

    def _start(self) -> Channels:
        logger = logging.Logger("channels")
        handler = logging.Handler()
        handler.emit = lambda record: self.logged.append(record.getMessage())  # type: ignore[method-assign]
        logger.addHandler(handler)
        folders = self.root / "channels", self.root / "checkpoints"
        self.daemon = Channels(*folders, logger, clock=lambda: self.now)
        return self.daemon

    @property
    def run(self) -> Path:
        return self.root / "channels" / "r1"

    def stands(self, name: str) -> Any:
        path = self.run / name
        return json.loads(path.read_text()) if path.exists() else None

    def write(self, name: str, said: Any, *, at: float | None = None) -> None:
        """As the run's code does, at a time of the file system's."""
        beside = self.run / f".{name}"
        beside.write_text(said if isinstance(said, str) else json.dumps(said))
        at = self.now if at is None else at
        os.utime(beside, (at, at))
        beside.replace(self.run / name)

    def hears(self, is_so: Callable[[Heard], Any]) -> bool:
        """Whether this is heard of the run, sooner or later."""
        return self.daemon.wait_for(
            lambda: bool(is_so(self.daemon.heard(["r1"]).get("r1", Heard()))), LONG
        )

    def heard(self) -> Heard:
        """What is heard of all that was written up to now."""
        self.look()
        return self.daemon.heard(["r1"])["r1"]

    def look(self) -> None:
        """See that the run's channel is looked at from now on once more, from start to end."""
        looks = len(self.looked)
        assert self.daemon.wait_for(lambda: len(self.looked) >= looks + 2, LONG)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(module, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(module, "LOOK_EVERY_UNDER_NOTICE", 0.01)
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.01)
    site = Site(tmp_path)
    bring = Folder.bring

    def look(self: Folder, content: Any) -> Any:
        site.looked.append(self.path.name)
        return bring(self, content)

    monkeypatch.setattr(Folder, "bring", look)
    yield site
    site.end()


# -- what runs find -----------------------------------------------------------------------------


def test_a_run_finds_its_lease_and_a_folder_for_its_checkpoints(site):
    site.daemon.open("r1", LEASE)
    assert site.daemon.finish(LONG)

    assert site.stands("lease.json") == {
        "schema": 1,
        "run": "r1",
        "request": "q1",
        "gpus": 0.5,
        "pool": "h100",
        "checkpoint_dir": str(site.root / "checkpoints" / "q1"),
    }
    assert (site.root / "checkpoints" / "q1").is_dir()
    assert site.stands("notice.json") is None


def test_a_run_finds_its_notice_and_that_it_is_spared(site):
    site.daemon.open("r1", LEASE)
    site.daemon.notify("r1", SINCE + 900, "reclaim", "finetune (nlp, 8 GPUs)")
    assert site.daemon.finish(LONG)
    assert site.stands("notice.json") == {
        "schema": 1,
        "until": SINCE + 900,
        "seconds_left": 300.0,
        "rule": "reclaim",
        "for": "finetune (nlp, 8 GPUs)",
    }

    site.daemon.spare("r1")
    assert site.daemon.finish(LONG)
    assert site.stands("notice.json") is None
    assert site.stands("lease.json")["run"] == "r1"


def test_what_stands_there_is_not_written_again(site):
    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.finish(LONG)
    before = [(site.run / name).stat().st_ino for name in ("lease.json", "notice.json")]

    for _ in range(3):
        site.daemon.open("r1", LEASE, NOTICE)
        site.daemon.notify("r1", NOTICE.until, NOTICE.rule, NOTICE.asked_by)
        site.look()

    assert [(site.run / name).stat().st_ino for name in ("lease.json", "notice.json")] == before


def test_what_a_user_removes_is_there_again(site):
    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.finish(LONG)

    for path in site.run.iterdir():
        path.unlink()
    site.run.rmdir()
    site.look()

    assert site.stands("lease.json")["request"] == "q1"
    assert site.stands("notice.json")["until"] == NOTICE.until


def test_a_deadline_that_is_moved_is_told_with_the_time_that_is_left_now(site):
    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.finish(LONG)

    site.now += 60
    site.daemon.notify("r1", NOTICE.until + 30, NOTICE.rule, NOTICE.asked_by)
    assert site.daemon.finish(LONG)

    assert site.stands("notice.json")["seconds_left"] == 270


def test_a_channel_that_is_closed_is_gone_and_so_is_an_empty_folder_for_checkpoints(site):
    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.finish(LONG)
    site.write("checkpointed.json", {})

    site.daemon.close("r1")
    assert site.daemon.wait_for(lambda: not site.daemon._channels, LONG)

    assert list((site.root / "channels").iterdir()) == []
    assert list((site.root / "checkpoints").iterdir()) == []
    assert site.daemon.heard(["r1"]) == {}


def test_checkpoints_and_what_is_not_ours_stay(site):
    site.daemon.open("r1", LEASE)
    assert site.daemon.finish(LONG)
    (site.root / "checkpoints" / "q1" / "model.pt").touch()
    (site.run / "my.log").touch()

    for _ in range(2):
        site.daemon.close("r1")
        assert site.daemon.wait_for(lambda: not site.daemon._channels, LONG)

    assert (site.root / "checkpoints" / "q1" / "model.pt").exists()
    assert [path.name for path in (site.root / "channels").rglob("*")] == ["r1.closed", "my.log"]

    # The same run again, with something of its own again.
    site.daemon.open("r1", LEASE)
    assert site.daemon.finish(LONG)
    (site.run / "my.log").touch()
    site.daemon.close("r1")
    assert site.daemon.wait_for(lambda: not site.daemon._channels, LONG)
    assert not site.run.exists()
    assert len(list((site.root / "channels").iterdir())) == 2


def test_the_checkpoints_of_work_that_goes_on_stay_though_there_are_none_yet(site):
    site.daemon.open("r1", LEASE)
    site.daemon.open("r2", LEASE)
    assert site.daemon.finish(LONG)

    site.daemon.close("r1")
    assert site.daemon.wait_for(lambda: list(site.daemon._channels) == ["r2"], LONG)

    assert (site.root / "checkpoints" / "q1").is_dir()


def test_folders_have_the_permissions_of_the_one_that_they_lie_in(site):
    for name in ("channels", "checkpoints"):
        (site.root / name).mkdir()
        (site.root / name).chmod(0o2770)

    site.daemon.open("r1", LEASE)
    assert site.daemon.finish(LONG)

    assert stat.S_IMODE(site.run.stat().st_mode) == 0o2770
    assert stat.S_IMODE((site.root / "checkpoints" / "q1").stat().st_mode) == 0o2770
    assert stat.S_IMODE((site.run / "lease.json").stat().st_mode) == 0o660


def test_a_name_leads_nowhere_else(site):
    site.daemon.open("../r1", Lease("../../q1", "h100", 1000, SINCE))
    assert site.daemon.finish(LONG)

    [run] = (site.root / "channels").iterdir()
    [request] = (site.root / "checkpoints").iterdir()
    assert run.name.startswith("_r1-")
    assert "/" not in request.name


# -- after another start of the daemon ----------------------------------------------------------


def test_a_daemon_that_starts_anew_leaves_a_notice_and_its_answer_as_they_are(site):
    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.finish(LONG)
    site.write("stop_here.json", {"at": site.now})
    before = (site.run / "notice.json").stat().st_ino

    site.restart().open("r1", LEASE, NOTICE)
    site.now += 60

    assert site.hears(lambda heard: heard.may_stop)
    assert (site.run / "notice.json").stat().st_ino == before


def test_a_notice_that_was_taken_back_while_no_daemon_was_there_is_removed(site):
    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.finish(LONG)

    site.restart().open("r1", LEASE)
    assert site.daemon.finish(LONG)

    assert site.stands("notice.json") is None


@pytest.mark.parametrize("junk", ["", "{", "[]", '{"schema": 1}'])
def test_what_stands_there_wrong_is_written_right(site, junk):
    site.run.mkdir(parents=True)
    site.write("lease.json", junk)
    site.write("notice.json", junk)

    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.finish(LONG)

    assert site.stands("lease.json")["request"] == "q1"
    assert site.stands("notice.json")["until"] == NOTICE.until


def test_a_daemon_closes_what_another_has_opened(site):
    site.daemon.open("r1", LEASE)
    assert site.daemon.finish(LONG)

    site.restart().close("r1")
    assert site.daemon.wait_for(lambda: not site.daemon._channels, LONG)

    assert not site.run.exists()


# -- what is heard ------------------------------------------------------------------------------


def test_nothing_is_heard_of_a_run_that_says_nothing(site):
    assert site.daemon.heard(["r1"]) == {}
    site.daemon.open("r1", LEASE)
    assert site.heard() == Heard()


def test_a_checkpoint_is_heard_of(site):
    site.daemon.open("r1", LEASE)
    assert site.daemon.finish(LONG)
    site.write("checkpointed.json", {"at": site.now - 5, "path": "/shared/model.pt"})

    heard = site.heard()

    assert (heard.checkpointed_at, heard.checkpoint_path) == (site.now - 5, "/shared/model.pt")


def test_an_empty_file_says_what_its_name_says(site):
    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.finish(LONG)
    site.write("checkpointed.json", "", at=site.now - 7)
    assert site.heard().checkpointed_at == site.now - 7

    site.write("stop_here.json", "\n")
    heard = site.heard()
    assert heard.may_stop
    assert heard.checkpointed_at == site.now
    assert site.logged == []


@pytest.mark.parametrize(
    ("at", "file_is_of", "means"),
    [
        (SINCE + 590, SINCE + 591, SINCE + 590),
        (SINCE + 4000, SINCE + 591, SINCE + 591),  # a clock that is ahead
        (SINCE + 4000, SINCE + 4000, SINCE + 600),  # the file's, too
        (SINCE - 3000, SINCE + 591, SINCE),  # a clock that is behind
        ("soon", SINCE + 591, SINCE + 591),
    ],
)
def test_nothing_counts_as_saved_before_it_was_done_nor_before_the_lease(
    site, at, file_is_of, means
):
    site.daemon.open("r1", LEASE)
    assert site.daemon.finish(LONG)
    site.write("checkpointed.json", {"at": at}, at=file_is_of)
    assert site.heard().checkpointed_at == means

    site.now += 100
    assert site.heard().checkpointed_at == means  # it does not come nearer by being looked at again


def test_busy_counts_from_when_it_was_said_by_our_clock(site):
    site.daemon.open("r1", LEASE)
    assert site.daemon.finish(LONG)
    theirs = site.now + 3600
    said = {"at": theirs, "until": theirs + 90, "reason": "loading\n the\x00 data"}
    site.write("busy.json", said)
    heard = site.heard()
    assert (heard.busy_until, heard.busy_reason) == (site.now + 90, "loading the data")

    site.write("busy.json", {"at": theirs, "until": 1e14, "reason": 5})
    heard = site.heard()
    assert (heard.busy_until, heard.busy_reason) == (site.now + LONGEST_BUSY, None)


def test_a_run_may_be_stopped_at_once_only_under_the_notice_that_it_has_answered(site):
    site.daemon.open("r1", LEASE)
    assert site.daemon.finish(LONG)
    site.write("stop_here.json", {})
    assert not site.heard().may_stop  # nobody wants to stop it

    site.daemon.notify("r1", NOTICE.until, "reclaim", "finetune")
    assert site.daemon.finish(LONG)
    assert site.stands("stop_here.json") is None  # from before: it answers nothing
    assert not site.heard().may_stop

    site.write("stop_here.json", {})
    assert site.hears(lambda heard: heard.may_stop)

    site.daemon.spare("r1")
    assert not site.daemon.heard(["r1"])["r1"].may_stop  # from now on, whatever was read before
    site.daemon.notify("r1", NOTICE.until, "reclaim", "finetune")
    assert not site.daemon.heard(["r1"])["r1"].may_stop


def test_an_answer_stays_when_the_deadline_is_moved(site):
    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.finish(LONG)
    site.write("stop_here.json", {})
    assert site.hears(lambda heard: heard.may_stop)

    site.daemon.notify("r1", NOTICE.until + 60, NOTICE.rule, NOTICE.asked_by)
    assert site.daemon.heard(["r1"])["r1"].may_stop
    assert site.daemon.finish(LONG)
    assert site.heard().may_stop


def test_steps_say_it_one_by_one(site):
    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.finish(LONG)
    site.write("stop_here.train.json", {"at": site.now, "step": "train"})
    site.write("stop_here.x.json", {"at": site.now})
    heard = site.heard()
    assert (heard.may_stop, heard.steps) == (True, {"train"})
    assert any("stop_here.x.json names no step" in line for line in site.logged)

    site.write("stop_here.json", {})
    assert site.heard().steps == frozenset()


@pytest.mark.parametrize(
    ("said", "steps", "may"),
    [
        (False, [], False),
        (True, [], True),
        (True, ["train"], False),
        (True, ["train", "evaluate"], True),
    ],
)
def test_a_run_is_stopped_at_once_when_all_its_steps_under_way_have_said_so(said, steps, may):
    def step(key: str, status: str | None) -> Any:
        return SimpleNamespace(
            step_key=key, status=None if status is None else SimpleNamespace(value=status)
        )

    stats = [
        step("prepare", "SUCCESS"),
        step("train", "IN_PROGRESS"),
        step("evaluate", "IN_PROGRESS"),
        step("later", None),
    ]
    instance: Any = SimpleNamespace(get_run_step_stats=lambda run_id: stats)
    heard = Heard(may_stop=said, steps=frozenset(steps))
    assert may_stop_now(instance, "r1", heard) is may


# -- what cannot be trusted ---------------------------------------------------------------------


def a_link(path: Path) -> None:
    secret = path.parent.parent / "secret"
    secret.write_text('{"at": 1, "path": "secret"}')
    path.symlink_to(secret)


def a_large_file(path: Path) -> None:
    path.write_text("{}" + " " * LARGEST)


def a_file(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text) and None


JUNK = [
    ("a link", a_link, "is not a regular file"),
    ("a pipe", os.mkfifo, "is not a regular file"),
    ("a folder", Path.mkdir, "is not a regular file"),
    ("a large file", a_large_file, "is larger than 64 KiB"),
    ("half a file", a_file('{"at": 1, "pa'), "is no JSON object"),
    ("a list", a_file("[1]"), "is no JSON object"),
    ("no text", lambda path: path.write_bytes(b"\xff\xfe") and None, "is no JSON object"),
    ("too deep", a_file("[" * 60_000), "is no JSON object"),
]


@pytest.mark.parametrize("name", ["checkpointed.json", "busy.json", "stop_here.json"])
@pytest.mark.parametrize(("put", "said"), [row[1:] for row in JUNK], ids=[row[0] for row in JUNK])
def test_junk_is_ignored_and_said_once(site, name, put, said):
    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.finish(LONG)
    put(site.run / name)

    for _ in range(2):
        assert site.heard() == Heard()

    assert site.logged == [f"In the channel of run r1, {name} {said}: ignored."]


def test_a_channel_that_is_a_link_is_not_followed(site):
    elsewhere = site.root / "elsewhere"
    elsewhere.mkdir()
    (site.root / "channels").mkdir()
    site.run.symlink_to(elsewhere)

    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.wait_for(lambda: site.logged, LONG)
    site.daemon.close("r1")
    assert site.daemon.wait_for(lambda: not site.daemon._channels, LONG)

    assert list(elsewhere.iterdir()) == []
    assert not site.run.is_symlink()


def test_a_notice_that_is_a_link_is_replaced_not_followed(site):
    site.run.mkdir(parents=True)
    mine = site.root / "mine"
    mine.write_text("mine")
    (site.run / "notice.json").symlink_to(mine)

    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.finish(LONG)

    assert mine.read_text() == "mine"
    assert not (site.run / "notice.json").is_symlink()
    assert site.stands("notice.json")["until"] == NOTICE.until


# -- what fails, and what hangs -----------------------------------------------------------------


def test_a_folder_that_cannot_be_written_is_said_once_and_tried_until_it_can(site):
    (site.root / "channels").write_text("in the way")
    for number in range(5):
        site.daemon.open(f"r{number}", LEASE)
    assert site.daemon.wait_for(
        lambda: all(each.trouble for each in site.daemon._channels.values()), LONG
    )
    site.daemon.notify("r1", NOTICE.until, NOTICE.rule, NOTICE.asked_by)
    site.look()
    assert not site.daemon.finish(0)
    assert site.daemon.heard(["r1"]) == {}
    [line] = site.logged
    assert "may not see its notice" in line

    (site.root / "channels").unlink()
    assert site.daemon.finish(LONG)

    assert site.stands("notice.json")["until"] == NOTICE.until
    assert site.logged[1:] == ["All runs can be told and heard again: no more 'File exists'."]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into every folder")
def test_a_folder_without_permission_is_one_that_cannot_be_written(site):
    site.run.mkdir(parents=True)
    site.run.chmod(0o500)

    site.daemon.open("r1", LEASE)
    assert site.daemon.wait_for(lambda: site.logged, LONG)
    assert "Permission denied" in site.logged[0]

    site.run.chmod(0o700)
    assert site.daemon.finish(LONG)


def test_without_a_folder_for_checkpoints_all_else_is_told_and_heard(site):
    (site.root / "checkpoints").write_text("in the way")
    site.daemon.open("r1", LEASE, NOTICE)
    assert site.daemon.finish(LONG)
    site.write("stop_here.json", {})

    assert site.hears(lambda heard: heard.may_stop)
    assert site.stands("notice.json")["until"] == NOTICE.until
    assert len(site.logged) == 1


def test_an_answer_that_cannot_be_removed_neither_keeps_the_notice_back_nor_counts(
    site, monkeypatch
):
    site.daemon.open("r1", LEASE)
    assert site.daemon.finish(LONG)
    site.write("stop_here.json", {})

    with monkeypatch.context() as patching:
        unlink = os.unlink

        def refuse(path: Any, **options: Any) -> None:
            if path == "stop_here.json":
                raise PermissionError(1, "Operation not permitted", path)
            unlink(path, **options)

        patching.setattr(os, "unlink", refuse)
        site.daemon.notify("r1", NOTICE.until, "reclaim", "finetune")
        assert site.daemon.wait_for(lambda: site.logged, LONG)
        site.look()
        assert site.stands("notice.json") is not None
        assert not site.daemon.heard(["r1"])["r1"].may_stop

    assert site.daemon.finish(LONG)
    assert site.stands("stop_here.json") is None


class Hanging:
    """Makes every look at the channels of some runs hang until the test is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *run_ids: str):
        self.end = threading.Event()
        self.entered = threading.Semaphore(0)
        bring = Folder.bring

        def hang(folder: Folder, content: Any) -> Any:
            if folder.path.name in run_ids and not self.end.is_set():
                self.entered.release()
                self.end.wait()
            return bring(folder, content)

        monkeypatch.setattr(Folder, "bring", hang)


def test_what_hangs_holds_nobody_up_and_the_newest_wish_counts_when_it_is_over(site, monkeypatch):
    hanging = Hanging(monkeypatch, "r1")
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    site.daemon.open("r1", LEASE)
    assert hanging.entered.acquire(timeout=LONG)

    # The passes go on, and others are served by another thread.
    site.daemon.notify("r1", NOTICE.until, "reclaim", "one")
    site.daemon.notify("r1", NOTICE.until + 10, "reclaim", "another")
    assert site.daemon.heard(["r1"]) == {}
    site.daemon.open("r2", LEASE)
    assert site.daemon.wait_for(lambda: "r2" in site.daemon.heard(["r2"]), LONG)
    assert any("has not answered for" in line and "(run r1)" in line for line in site.logged)

    hanging.end.set()
    site.daemon.heard([])
    assert site.daemon.finish(LONG)
    assert site.stands("notice.json")["for"] == "another"


def test_only_so_many_hang_and_all_goes_on_when_the_folder_answers_again(site, monkeypatch):
    run_ids = [f"r{number}" for number in range(6)]
    hanging = Hanging(monkeypatch, *run_ids)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    for run_id in run_ids:
        site.daemon.open(run_id, LEASE, NOTICE)
    for _ in range(module.MOST_HANGING):
        site.daemon.heard(run_ids)
        assert hanging.entered.acquire(timeout=LONG)
    for _ in range(10):
        site.daemon.heard(run_ids)
    assert len(site.daemon._working) == site.daemon._threads == module.MOST_HANGING

    monkeypatch.setattr(module, "PATIENCE", 1000.0)
    hanging.end.set()
    assert site.daemon.finish(LONG)
    assert site.stands("notice.json")["until"] == NOTICE.until


def test_threads_end_with_the_last_channel(site):
    site.daemon.open("r1", LEASE)
    assert site.daemon.finish(LONG)
    site.daemon.close("r1")
    assert site.daemon.wait_for(lambda: site.daemon._threads == 0, LONG)

    site.daemon.open("r1", LEASE)
    assert site.daemon.finish(LONG)
    assert site.stands("lease.json")["run"] == "r1"


def test_many_runs_are_looked_at_less_often_and_told_first(site, monkeypatch):
    monkeypatch.setattr(module, "LOOKS_A_SECOND", 1)
    for number in range(200):
        site.daemon.open(f"r{number}", LEASE)
    assert site.daemon.finish(LONG)

    looks = len(site.looked)
    site.daemon.notify("r150", NOTICE.until, "reclaim", "finetune")
    assert site.daemon.finish(LONG)

    # Nobody else's turn came before: theirs is minutes away.
    assert set(site.looked[looks:]) == {"r150"}
