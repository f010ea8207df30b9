"""Launches a second: Dagster's own queue daemon beside ours, one at a time and with threads.

python tests/benchmarks/run_launches.py [--runs 60] [--rounds 3]

Real instances on SQLite, the daemons' own iterations, and a launcher that starts nothing: what is left is
what a daemon does for each run. Each round measures all four in turn; the best of the rounds is shown.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration" / "gate"))

from gate_stage import stage_at

POLICY = """
pools: {a100: {gpus: 10000}}
teams: {red: {quota: {a100: 10000}}}
"""
STOCK = {"module": "dagster._core.run_coordinator", "class": "QueuedRunCoordinator"}


def launches_a_second(*, ours: bool, threads: bool, runs: int) -> float:
    options = {"max_concurrent_runs": -1, "dequeue_use_threads": threads}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        stock = {} if ours else {"run_coordinator": {**STOCK, "config": options}}
        storage = {"sqlite": {"base_dir": folder}}
        with stage_at(home, storage, POLICY, **(options if ours else {}), **stock) as stage:
            asks = {"team": "red", "pool": "a100", "gpus": 1} if ours else {}
            for _ in range(runs):
                stage.submit(**asks)
            began = time.perf_counter()
            while len(stage.launched) < runs:
                if ours:
                    stage.troubled_pass()
                else:
                    stage.stock_pass()
                # As the daemon does: another pass a second later, unless all is done by then.
                stage.launcher.await_count(runs, timeout=1.0)
            took = time.perf_counter() - began
            if ours:
                stage.daemon._gate.teller.finish()
            return runs / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    best: dict[tuple[bool, bool], float] = {}
    for _ in range(given.rounds):
        for threads in (False, True):
            for ours in (False, True):
                rate = launches_a_second(ours=ours, threads=threads, runs=given.runs)
                best[ours, threads] = max(best.get((ours, threads), 0.0), rate)
    for threads in (False, True):
        stock, gated = best[False, threads], best[True, threads]
        how = "with threads" if threads else "one at a time"
        print(
            f"{how:>14}: stock {stock:5.1f} a second, ours {gated:5.1f}, ratio {gated / stock:.2f}"
        )


if __name__ == "__main__":
    main()
