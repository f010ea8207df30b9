"""What one decision costs: ``plan()`` over a long queue of a large site, and how that grows.

    python tests/benchmarks/run_plan.py                              # small: a look in seconds
    python tests/benchmarks/run_plan.py --queued 10000 100000        # what is aimed at
    python tests/benchmarks/run_plan.py --queued 100000 --memory     # memory instead of time

`sample_site` draws the site: a tenth as many GPUs as requests wait, 50 teams at 10,000 and 200 at 100,000,
most of the queue in backfills of up to 1,000 runs. Requests that are alike share the work of a pass, so
``--varied`` draws a site with three times as many kinds of them: backfills of up to 100 runs.
Three moments of it are decided, with preemption off and auto:

- busy: all that can start has started, and who must leave is under notice; what a pass costs most of the
  time. Two fifths of the queue wait for ``lower_priority``, behind reservations and promises.
- fresh: a third of the GPUs in use have just come free.
- reclaim (with preemption only): as busy, but nobody is under notice yet.

Each line of output is one JSON object. In ``figures``: median and best of the rounds in milliseconds, with
Python's cyclic collector at rest as in the daemon, the best in microseconds for each request, one round with
the collector at work, how many kinds of requests there are (those alike share the work of a pass), what was
decided, and how many wait for which reason. In ``ratios``: the best to the aim of 50 ms at 10,000 and 500 ms
at 100,000 (5 µs for each request); to the yardstick, which is to sort the same requests once by what they
ask for, measured in turn, so that figures of two machines compare; the part of the queue that waits behind
others. The lines named ``growth`` compare the longest queue with the
shortest: time ratio ÷ length ratio, so 1 is linear and less is better.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from sample_site import NOW, Size, site, with_free

from dagster_gpufair.engine.collector import collector_at_rest
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Plan, State
from dagster_gpufair.scheduling.plan import plan

AIM_US = 5.0
"""For each waiting request."""

MIB = 1024 * 1024
_by_what_is_asked = attrgetter("team", "tier", "pools", "gpus", "submitted", "id")
_alike = attrgetter(
    *("team", "project", "pools", "tier", "kind", "gpus", "min_gpus", "gpus_per_node"),
    *("max_duration", "preempted", "cpus", "memory_gib"),
)


def say(name: str, figures: dict[str, Any], ratios: dict[str, Any]) -> None:
    """One line of output."""
    print(json.dumps({"name": name, "figures": figures, "ratios": ratios}), flush=True)


def settled(policy: Policy, state: State) -> State:
    """The moment once all that one pass decides is carried out."""
    return state.following(plan(policy, state, NOW), NOW, policy.grace)


def milliseconds(action: Callable[[], Any]) -> tuple[float, Any]:
    """How long it takes, with a collected heap before and the collector at rest, as in the daemon."""
    gc.collect()
    with collector_at_rest():
        started = time.perf_counter()
        result = action()
        return (time.perf_counter() - started) * 1e3, result


def decided(result: Plan, queued: int) -> tuple[dict[str, Any], float]:
    """What the plan says, in numbers, and the part of the queue that waits behind others."""
    reasons: Counter[str] = Counter()
    for group in result.waiting:
        reasons[group.reason] += len(group.requests)
    figures = {
        "starts": len(result.starts),
        "preemptions": len(result.preemptions),
        "victims": sum(len(each.victims) for each in result.preemptions),
        "reservations": len(result.reservations),
        "groups": len(result.waiting),
        "reasons": dict(reasons.most_common()),
    }
    return figures, round(reasons["lower_priority"] / queued, 3)


def measure(name: str, policy: Policy, state: State, rounds: int) -> dict[str, float]:
    """Decide the moment so often, and the yardstick in turn; one line. The best of both, in ms."""
    times: dict[str, list[float]] = {"plan": [], "yardstick": []}
    queued = len(state.requests)
    for _ in range(rounds):
        result = None  # So that letting the last plan go is in nobody's time.
        took, result = milliseconds(lambda: plan(policy, state, NOW))
        times["plan"].append(took)
        took, _ = milliseconds(lambda: sorted(state.requests, key=_by_what_is_asked))
        times["yardstick"].append(took)
    result = None
    gc.collect()
    started = time.perf_counter()
    result = plan(policy, state, NOW)
    collected = (time.perf_counter() - started) * 1e3
    best = {what: min(taken) for what, taken in times.items()}
    decisions, behind_others = decided(result, queued)
    figures = {
        "queued": queued,
        "gpus": sum(pool.capacity for pool in policy.pools.values()) // 1000,
        "teams": len(policy.teams),
        "leases": len(state.leases),
        "kinds": len({_alike(request) for request in state.requests}),
        "median_ms": round(statistics.median(times["plan"]), 2),
        "best_ms": round(best["plan"], 2),
        "with_gc_ms": round(collected, 2),
        "us_per_request": round(best["plan"] * 1e3 / queued, 2),
        "yardstick_ms": round(best["yardstick"], 2),
        **decisions,
    }
    ratios = {
        "best/aim": round(best["plan"] * 1e3 / queued / AIM_US, 2),
        "best/yardstick": round(best["plan"] / best["yardstick"], 2),
        "lower_priority/queued": behind_others,
    }
    say(name, figures, ratios)
    return best


def compare(name: str, by_length: dict[int, dict[str, float]]) -> None:
    """How the longest queue's best compares with the shortest's."""
    short, long = min(by_length), max(by_length)
    times = {what: by_length[long][what] / by_length[short][what] for what in by_length[short]}
    figures = {
        "queued": [short, long],
        "times_as_long": round(long / short, 2),
        "times_the_time": round(times["plan"], 2),
    }
    growth = {what: round(ratio * short / long, 2) for what, ratio in times.items()}
    say(f"growth {name}", figures, growth)


def speed(lengths: list[int], modes: list[str], rounds: int, seed: int, varied: bool) -> None:
    """Every moment with every mode, at every length."""
    best: dict[str, dict[int, dict[str, float]]] = {}
    for mode in modes:
        for queued in lengths:
            policy, raw = site(queued, mode, seed, varied)
            busy = settled(policy, raw)
            moments = {"busy": busy, "fresh": with_free(busy, 1 / 3, seed)}
            if mode != "off":
                moments["reclaim"] = raw
            for moment, state in moments.items():
                name = f"plan {moment}, preemption {mode}"
                best.setdefault(name, {})[queued] = measure(name, policy, state, rounds)
    if len(lengths) > 1:
        for name, by_length in best.items():
            compare(name, by_length)


def resident(what: str) -> float:
    """``VmRSS`` (now) or ``VmHWM`` (its peak) of this process, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(what)


def memory(queued: int, mode: str, seed: int, varied: bool) -> None:
    """What a state and a pass over it take: by resident memory first, then by what Python allocated."""
    gc.collect()
    before = resident("VmRSS")
    policy, state = site(queued, mode, seed, varied)
    gc.collect()
    with_state = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # The peak counts from here on.
    result = plan(policy, state, NOW)
    peak, with_plan = resident("VmHWM"), resident("VmRSS")
    del policy, state, result

    gc.collect()
    tracemalloc.start()
    policy, state = site(queued, mode, seed, varied)
    gc.collect()
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    result = plan(policy, state, NOW)
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    figures = {
        "queued": queued,
        "gpus": Size(queued).gpus,
        "rss_mib": {
            "before": round(before, 1),
            "state": round(with_state - before, 1),
            "plan_peak": round(peak - with_state, 1),
            "plan_kept": round(with_plan - with_state, 1),
        },
        "python_mib": {
            "state": round(allocated / MIB, 1),
            "plan_peak": round((most - allocated) / MIB, 1),
            "plan_kept": round((kept - allocated) / MIB, 1),
        },
        "state_bytes_per_request": round(allocated / queued),
        "plan_peak_bytes_per_request": round((most - allocated) / queued),
        "starts": len(result.starts),
    }
    ratios = {"plan_peak/state": round((most - allocated) / allocated, 2)}
    say(f"memory, preemption {mode}", figures, ratios)


def main() -> None:
    """Run the benchmark and print its lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--queued", type=int, nargs="+", default=[5000, 10000])
    parser.add_argument("--preemption", nargs="+", choices=["off", "auto"], default=["off", "auto"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--varied", action="store_true", help="backfills of 100 runs at most")
    parser.add_argument("--memory", action="store_true", help="of the longest queue, not time")
    options = parser.parse_args()
    if options.memory:
        memory(max(options.queued), options.preemption[0], options.seed, options.varied)
    else:
        speed(options.queued, options.preemption, options.rounds, options.seed, options.varied)


if __name__ == "__main__":
    main()
