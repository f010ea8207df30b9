"""The example of the docs as a real run: told, saved, stopped, and gone on with; or spared.

The run is what Dagster's own command starts, with the multiprocess executor: its step is its own process.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest

from dagster_gpufair.gate.channels.channels import Channels
from dagster_gpufair.gate.channels.steps import may_stop_now
from dagster_gpufair.gate.channels.words import Heard, Lease
from dagster_gpufair.preemption.dagster_step import CONTINUES_TAG

LONG = 120.0
"""Seconds that a test waits for what is certain to come."""
HERE = Path(__file__).parents[3]
DOCS = HERE / "docs" / "preemption.md"

AROUND = """
from pathlib import Path
import time

HOME = Path({home!r})

def train_one_step(step):
    # The first run comes no further than this before it is told.
    while step == 150 and (HOME / "wait").exists() and not should_stop():
        time.sleep(0.02)
    with (HOME / "steps").open("a") as steps:
        print(step, file=steps)
    return step + 1

@dg.job
def job():
    train()
"""


class Site:
    """An instance with the example as a job, and the daemon's channels."""

    def __init__(self, home: Path, instance: dg.DagsterInstance):
        self.home = home
        self.instance = instance
        logger = logging.getLogger("channels")
        self.channels = Channels(
            home / "gpufair" / "channels", home / "gpufair" / "checkpoints", logger
        )
        section = DOCS.read_text().partition("## Plain Python\n")[2]
        example = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)[0]
        (home / "stage.py").write_text(example + AROUND.format(home=str(home)))
        (home / "wait").touch()

    @contextmanager
    def running(self, tags: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        """The run as a process, and its steps as children of it."""
        command = [sys.executable, "-m", "dagster", "job", "execute", "-f", "stage.py", "-j", "job"]
        if tags:
            command += ["--tags", json.dumps(tags)]
        env = {**os.environ, "DAGSTER_HOME": str(self.home)}
        env["PYTHONPATH"] = os.pathsep.join([str(HERE), env.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            command,
            cwd=self.home,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def run_id(self) -> str:
        """The run that goes on, once it is there."""
        found: list[str] = []

        def is_there() -> bool:
            goes_on = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
            found[:] = [run.run_id for run in self.instance.get_runs(goes_on)]
            return len(found) == 1

        until(is_there)
        return found[0]

    def hears(self, run_id: str, is_so: Callable[[Heard], object]) -> Heard:
        """What the run says of itself, once this is so."""
        heard: list[Heard] = []

        def is_heard() -> bool:
            heard[:] = self.channels.heard([run_id]).values()
            return bool(heard) and bool(is_so(heard[0]))

        assert self.channels.wait_for(is_heard, LONG)
        return heard[0]

    def status(self, run_id: str) -> str:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run.status.value

    def steps(self) -> Sequence[int]:
        return [int(line) for line in (self.home / "steps").read_text().split()]


def until(is_so: Callable[[], bool]) -> None:
    """What another process brings about in Dagster's storage can only be looked for."""
    end = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        site = Site(tmp_path, instance)
        yield site
        for run in instance.get_runs():
            site.channels.close(run.run_id)
        assert site.channels.finish(LONG)


def test_a_run_is_told_saves_is_stopped_and_another_goes_on(site: Site) -> None:
    began = time.time()
    with site.running() as process:
        run_id = site.run_id()
        site.channels.open(run_id, Lease(run_id, "h100", 1000, began))
        # It has saved at step 100, without anybody having asked.
        assert site.hears(run_id, lambda heard: heard.checkpointed_at).checkpointed_at is not None
        assert not site.channels.heard([run_id])[run_id].may_stop

        site.channels.notify(run_id, time.time() + 3600, "reclaim", "finetune (nlp, 8 GPUs)")
        heard = site.hears(run_id, lambda heard: heard.may_stop)
        assert heard.steps == {"train"}
        assert may_stop_now(site.instance, run_id, heard)
        assert site.status(run_id) == "STARTED"
        checkpoint = site.home / "gpufair" / "checkpoints" / run_id / "train" / "state.json"
        assert heard.checkpoint_path == str(checkpoint)
        assert json.loads(checkpoint.read_text()) == 151

        process.send_signal(signal.SIGTERM)
        process.wait(LONG)
    # The step has neither succeeded nor gone on.
    assert site.status(run_id) in ("CANCELED", "FAILURE")
    assert site.steps() == list(range(151))
    site.channels.close(run_id)

    (site.home / "wait").unlink()
    with site.running({CONTINUES_TAG: f"{run_id}/1"}) as process:
        output, _ = process.communicate(timeout=LONG)
    assert process.returncode == 0, output
    assert site.steps() == list(range(1000))


def test_a_run_that_is_spared_goes_on_to_its_end(site: Site) -> None:
    with site.running() as process:
        run_id = site.run_id()
        site.channels.open(run_id, Lease(run_id, "h100", 1000, time.time()))
        site.channels.notify(run_id, time.time() + 3600, "reclaim", "finetune (nlp, 8 GPUs)")
        site.hears(run_id, lambda heard: heard.may_stop)

        (site.home / "wait").unlink()
        site.channels.spare(run_id)
        output, _ = process.communicate(timeout=LONG)

    assert process.returncode == 0, output
    assert site.status(run_id) == "SUCCESS"
    assert site.steps() == list(range(1000))
