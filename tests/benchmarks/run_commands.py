"""What each command costs: CPU seconds of ``gpufair`` as a process, on an instance with a few runs.

    python tests/benchmarks/run_commands.py [--rounds 5]

Each line of output is one JSON object: CPU seconds (user and system) of the best round and of the median one,
with what Python has compiled already, as after an installation by pip. ``best/aim`` is the best to the aim
(0.4 for ``--version`` and ``decide``, 1 for the others); ``best/dagster`` compares it with
``import dagster``, measured in turn, so that figures of two machines compare. ``queue (daemon gone)`` is
asked an hour after the last pass of a daemon.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration" / "cli"))

from cli_samples import COORDINATOR, POLICY, Filling, asked, begin

from dagster_gpufair.cli.instance.dagster_internals import open_instance
from dagster_gpufair.ledger.connect import ledger_of

ROOT = Path(__file__).resolve().parents[2]
CASE = """
policy: gpufair.yaml
running: [{id: r1, team: vision, tier: standard, pool: h100, gpus: 8, started: -1h, node: h1}]
queued:
  - {id: q1, team: nlp, tier: standard, pool: h100, gpus: 8, submitted: -2h}
  - {id: q2, team: nlp, tier: exploratory, pool: h100, gpus: 4, submitted: -1h}
"""
COMMANDS: Sequence[tuple[str, float]] = (
    ("--version", 0.4),
    ("decide case.yaml", 0.4),
    ("queue", 1.0),
    ("explain 00000003", 1.0),
    ("explain 00000001", 1.0),
    ("history 00000001", 1.0),
    ("refused", 1.0),
    ("pools", 1.0),
    ("teams", 1.0),
    ("policy show", 1.0),
    ("policy history", 1.0),
    ("policy check", 1.0),
)
DAGSTER = "import dagster"
GPUFAIR = "from dagster_gpufair.cli.main import main; main()"
LONG_AHEAD = -24 * 60.0


def fill(home: Path, passed: float) -> None:
    """An instance with a few runs, whose daemon passed so many minutes ago."""
    (home / "gpufair.yaml").write_text(POLICY)
    (home / "case.yaml").write_text(CASE)
    said = {"run_coordinator": COORDINATOR, "telemetry": {"enabled": False}}
    (home / "dagster.yaml").write_text(yaml.safe_dump(said))
    with open_instance(home, home) as instance:
        ledger = ledger_of(instance)
        filling = Filling(ledger)
        filling.adopt()
        filling.run(asked(1, 8, ago=60), asked(2, 4, ago=50, team="vision"), ago=40)
        filling.submit(asked(3, 8, ago=30), asked(4, 8, ago=20), asked(5, 4, ago=10, team="vision"))
        filling.passed(passed)
        ledger.dispose()


def cpu_seconds(code: str, words: Sequence[str], home: Path) -> float:
    """Of one process, and of what it waited for."""
    # What is compiled is kept, whatever the environment of the benchmark says.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env = {**kept, "DAGSTER_HOME": str(home), "PYTHONPATH": str(ROOT)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", code, *words], cwd=home, env=env, check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(what: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, tuple[float, float]]:
    """Best and median of each, in turn; a first round fills caches and does not count."""
    taken = [{name: one() for name, one in what.items()} for _ in range(rounds + 1)][1:]
    of = {name: [each[name] for each in taken] for name in what}
    return {name: (min(some), statistics.median(some)) for name, some in of.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    begin()
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as gone:
        fill(Path(here), passed=LONG_AHEAD)
        fill(Path(gone), passed=60.0)
        what = {
            command: partial(cpu_seconds, GPUFAIR, command.split(), Path(here))
            for command, _ in COMMANDS
        }
        what["queue (daemon gone)"] = partial(cpu_seconds, GPUFAIR, ["queue"], Path(gone))
        what[DAGSTER] = partial(cpu_seconds, DAGSTER, (), Path(here))
        found = measure(what, rounds)
    yardstick = found.pop(DAGSTER)[0]
    aims = dict(COMMANDS)
    for command, (best, median) in found.items():
        figures = {"best_cpu_s": round(best, 3), "median_cpu_s": round(median, 3)}
        ratios = {
            "best/aim": round(best / aims.get(command, 1.0), 2),
            "best/dagster": round(best / yardstick, 2),
        }
        print(json.dumps({"command": command, "figures": figures, "ratios": ratios}))


if __name__ == "__main__":
    main()
