"""What user code says of itself, as the daemon finds it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_gpufair.preemption import busy, checkpointed, should_stop, stop_here
from dagster_gpufair.preemption import files as channel_files

_SAVING = "reports.checkpointed()"


class Stopped(BaseException):
    """As Dagster, or a signal, ends a step in the middle of whatever it does."""


def test_without_a_channel_nothing_is_written(clock, tmp_path):
    checkpointed(tmp_path / "model.pt")
    busy("loading", 60)
    stop_here()
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_told_with_its_time_and_place(channel, clock):
    checkpointed()
    assert channel.said("checkpointed.json") == {"at": clock.time()}

    clock.now += 10
    checkpointed(Path("/shared/model.pt"))
    assert channel.said("checkpointed.json") == {"at": clock.time(), "path": "/shared/model.pt"}
    assert channel.names() == {"checkpointed.json"}


@pytest.mark.parametrize("for_", [90, 90.0, timedelta(minutes=1.5)])
def test_busy_is_told_with_its_reason_and_its_end(channel, clock, for_):
    busy("loading the data set", for_)
    assert channel.said("busy.json") == {
        "at": clock.time(),
        "until": clock.time() + 90,
        "reason": "loading the data set",
    }


@pytest.mark.parametrize("for_", [-1, math.nan, math.inf, timedelta(seconds=-1)])
def test_a_time_that_is_none_is_an_error_under_the_gate_or_not(clock, for_):
    with pytest.raises(ValueError, match="number of seconds from 0 on"):
        busy("loading", for_)


def test_that_nothing_can_be_said_is_logged_once_and_is_no_error(
    channel, clock, caplog, monkeypatch
):
    def fail(path, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(channel_files, "write", fail)
        for _ in range(3):
            checkpointed()
    checkpointed()

    [record] = caplog.records
    assert "No space left on device" in record.getMessage()
    assert "does not hear of checkpointed" in record.getMessage()
    assert channel.names() == {"checkpointed.json"}


def test_what_could_not_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(self, target):
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(PermissionError):
        channel_files.write(tmp_path / "busy.json", {"at": 1})
    assert list(tmp_path.iterdir()) == []


# -- stop_here ----------------------------------------------------------------------------------


def test_stop_here_waits_for_the_stop_and_neither_returns_nor_fails_before(channel, clock):
    channel.notify(clock.time() + 300)
    sleeps = []

    def stop_at_last() -> None:
        sleeps.append(channel.names())
        if len(sleeps) == 1000:  # long after the deadline: the daemon may be late
            raise Stopped

    clock.while_asleep = stop_at_last
    with pytest.raises(Stopped):
        stop_here()

    assert all("stop_here.json" in names for names in sleeps)
    assert channel.said("stop_here.json")["at"] <= clock.time()


def test_stop_here_returns_when_the_notice_is_taken_back(channel, clock):
    channel.notify(clock.time() + 300)
    clock.while_asleep = channel.spare

    stop_here()

    assert channel.names() == set()
    assert not should_stop()


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a process does not see its parent end")
@pytest.mark.parametrize(
    "before",
    [
        "",
        "import signal; signal.signal(signal.SIGTERM, lambda *_: None)",
        # It calls `stop_here` only when the other has ended.
        f"{_SAVING}; import os, time\nwhile os.getppid() == reports._parent: time.sleep(0.05)",
    ],
    ids=["waits", "ignores SIGTERM", "is about to wait"],
)
def test_stop_here_ends_with_the_process_that_began_it(channel, before):
    """A run's worker is killed whose step waits to be stopped: nobody is left to stop that."""
    channel.notify(time.time() + 300)
    step = "from dagster_gpufair.preemption import reports; reports._TERM_TAKES = 0.5\n"
    step += f"{before}\nreports.stop_here()"
    worker = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {step!r}])"
    with subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE) as run:
        while channel.names().isdisjoint(("stop_here.json", "checkpointed.json")):
            time.sleep(0.05)
        run.kill()
        # It is over when the last process that has it is.
        assert run.stdout is not None
        assert run.stdout.read() == b""


def test_stop_here_without_a_notice_returns_at_once_and_says_nothing(channel, clock):
    stop_here()
    assert channel.names() == set()


def test_stop_here_sees_at_once_that_the_notice_was_taken_back(channel, clock):
    channel.notify(clock.time() + 300)
    assert should_stop()
    channel.spare()
    assert should_stop()  # it has looked just now

    stop_here()

    assert channel.names() == set()


def test_stop_here_says_it_again_when_the_daemon_has_cleared_it(channel, clock):
    channel.notify(clock.time() + 300)
    seen = []

    def clear_first() -> None:
        seen.append("stop_here.json" in channel.names())
        (channel.folder / "stop_here.json").unlink()
        if len(seen) == 3:
            channel.spare()

    clock.while_asleep = clear_first
    stop_here()

    assert seen == [True, True, True]


def test_stop_here_waits_on_where_it_cannot_be_heard(channel, clock, monkeypatch, caplog):
    channel.notify(clock.time() + 300)

    def fail(path, data):
        raise PermissionError("read-only")

    def stop_in_the_end() -> None:
        if clock.now > 2000:
            raise Stopped

    monkeypatch.setattr(channel_files, "write", fail)
    clock.while_asleep = stop_in_the_end
    with pytest.raises(Stopped):
        stop_here()

    assert len([each for each in caplog.records if "read-only" in each.getMessage()]) == 1


def test_stop_here_waits_on_when_the_channel_is_gone(channel, clock):
    channel.notify(clock.time() + 300)

    def remove_then_stop() -> None:
        if channel.folder.exists():
            for path in channel.folder.iterdir():
                path.unlink()
            channel.folder.rmdir()
        elif clock.now > 2000:
            raise Stopped

    # As the daemon does it: it renames the folder first, so that no half of it is ever seen.
    clock.while_asleep = lambda: (
        (channel.folder.exists() and channel.folder.rename(channel.folder.with_name("closed")))
        or remove_then_stop()
    )
    with pytest.raises(Stopped):
        stop_here()


def test_a_step_speaks_for_itself(channel, clock, monkeypatch):
    monkeypatch.setenv("GPUFAIR_STEP", "train[a]")
    channel.notify(clock.time() + 300)
    said = []

    def spare() -> None:
        said.append(channel.said("stop_here.train[a].json"))
        channel.spare()

    clock.while_asleep = spare
    stop_here()

    assert said == [{"at": clock.time() - 0.5, "step": "train[a]"}]
