"""Kueue's published scheduler workload, through a loop of real ``plan()`` passes on the real clock.

    python tests/benchmarks/run_kueue_workload.py                    # a tenth of the jobs: seconds
    python tests/benchmarks/run_kueue_workload.py --part 1           # as published: more than a minute
    python tests/benchmarks/run_kueue_workload.py --part 1 --preemption auto

The workload is ``test/performance/scheduler/configs/baseline/generator.yaml`` of kubernetes-sigs/kueue, and
what it took there the averages in ``rangespec.yaml`` beside it. Its words and ours:

- 5 cohorts: 5 pools of 120 GPUs without nodes.
- 6 queues in each, nominal quota 20, borrowing limit 100: teams with ``quota: 20``, ``borrow_limit: 100``.
- small, medium and large jobs with priority 50, 100, 200: tiers with these points. No other points count,
  so that inside a team the order is theirs: priority, then time.
- ``reclaimWithinCohort: Any``, ``withinClusterQueue: LowerPriority``: with ``--preemption auto`` what a quota
  covers stops borrowed jobs of others, and a job stops those of lower priority in its team. Its own team's
  may be stopped on quota too, so tiers are ``preemptible: always``. No minimum runtime and no grace, as
  there: a stopped job goes back to the queue at once and starts over.
- Jobs have no bounds: Kueue is not told either how long they run.
- Time to admission: from a job's creation to its last start.

What differs: a job there is objects on a Kubernetes API server, here an entry of the state in memory. So
the comparison is with what the scheduler as a whole makes of the capacity, not of its passes. The loop
plans whenever something came or ended, for all pools at once as the daemon does, and at most every
``--gap`` milliseconds. A start counts from the end of its pass.

One line of output, a JSON object. In ``figures`` times are in seconds of the workload: the wall time to the
last end; the bound, which is all work ÷ all GPUs (66 s for all jobs); the part of the capacity that was
used for work that was finished, and for work that was lost to preemptions; the mean time to admission;
passes with their mean and longest time in real milliseconds, and the part of the time they took. In
``ratios``: the wall time to the bound (aim, with all jobs: 1.15 at most) and, with all jobs, wall time and
time to admission to Kueue's. A part of the jobs has the same start and end at which GPUs are idle, so its
ratio is higher. ``--speed 10`` runs the workload's clock ten times as fast: passes weigh ten times as
much then.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from math import inf
from statistics import fmean
from typing import Any, NamedTuple

from dagster_gpufair.policy.checks import problems_of
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Lease, Request, State
from dagster_gpufair.scheduling.plan import plan

GROUPS, QUEUES, QUOTA, BORROW = 5, 6, 20, 100
GPU = 1000


class Kind(NamedTuple):
    """Jobs that are alike: what one needs, how long it runs, and how they come to each queue."""

    name: str
    points: int
    gpus: int
    lasts: float
    jobs: int
    every: float


KINDS = (
    Kind("small", points=50, gpus=1, lasts=0.2, jobs=350, every=0.1),
    Kind("medium", points=100, gpus=5, lasts=0.5, jobs=100, every=0.5),
    Kind("large", points=200, gpus=20, lasts=1.0, jobs=50, every=1.2),
)
KUEUE_WALL = 351.1
KUEUE_ADMISSION = {"small": 215.5, "medium": 76.8, "large": 16.5}


class Arrival(NamedTuple):
    at: float
    id: str
    kind: Kind
    group: str
    queue: str


def workload(part: float) -> list[Arrival]:
    """All jobs by their creation; the first of a kind comes after its interval, as there."""
    arrivals = [
        Arrival((number + 1) * kind.every, f"{queue}-{kind.name}-{number}", kind, group, queue)
        for group in (f"group{number}" for number in range(GROUPS))
        for queue in (f"{group}-queue{number}" for number in range(QUEUES))
        for kind in KINDS
        for number in range(max(1, round(kind.jobs * part)))
    ]
    return sorted(arrivals, key=lambda arrival: (arrival.at, arrival.id))


def policy_of(preemption: str) -> Policy:
    """Kueue's configuration in our words."""
    pools = [f"group{number}" for number in range(GROUPS)]
    policy = Policy.model_validate(
        {
            "pools": {pool: {"gpus": QUEUES * QUOTA} for pool in pools},
            "teams": {
                f"{pool}-queue{number}": {
                    "quota": {pool: QUOTA},
                    "borrow_limit": {pool: BORROW},
                    "tiers": [kind.name for kind in KINDS],
                }
                for pool in pools
                for number in range(QUEUES)
            },
            "tiers": {
                kind.name: {"points": kind.points, "preemptible": "always"} for kind in KINDS
            },
            "preemption": {"mode": preemption, "grace": "0s", "min_runtime": "0s"},
            "ordering": {
                "wait_points_per_hour": 0,
                "share_points": 0,
                "preempted_points": 0,
                "deadline_points": 0,
                "source_points": 0,
            },
        }
    )
    assert problems_of(policy) == []
    return policy


@dataclass
class Job:
    """One job from its creation to its end; it starts over if it was stopped."""

    arrival: Arrival
    request: Request
    started: float = inf
    preempted: int = 0

    @classmethod
    def of(cls, arrival: Arrival) -> Job:
        request = Request(
            id=arrival.id,
            team=arrival.queue,
            tier=arrival.kind.name,
            pools=(arrival.group,),
            gpus=arrival.kind.gpus * GPU,
            submitted=arrival.at,
        )
        return cls(arrival, request)

    @property
    def ends(self) -> float:
        return self.started + self.arrival.kind.lasts

    def back(self, now: float) -> Request:
        """What it asks for once it was stopped."""
        self.started, self.preempted = inf, self.preempted + 1
        return replace(self.request, submitted=now, preempted=self.preempted)


@dataclass
class Loop:
    """Arrivals, passes and ends, until all jobs have ended."""

    policy: Policy
    arrivals: list[Arrival]
    speed: float
    gap: float
    state: State = field(default_factory=State)
    jobs: dict[str, Job] = field(default_factory=dict)
    passes: list[float] = field(default_factory=list)
    waited: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    preempted: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lost: float = 0.0

    def run(self) -> float:
        """Seconds of the workload until the last end."""
        self.began = time.monotonic()
        while self.arrivals or self.state.requests or self.state.leases:
            now = self.now()
            if self.arrive(now) | self.end(now):
                self.one_pass(now)
                pause = self.gap
            else:
                pause = (self.next_event() - now) / self.speed
            if pause > 0:
                time.sleep(pause)
        return self.now()

    def now(self) -> float:
        return (time.monotonic() - self.began) * self.speed

    def next_event(self) -> float:
        """When something comes or ends next, if nothing is stuck."""
        ends = min((self.over(lease) for lease in self.state.leases), default=inf)
        event = min(ends, self.arrivals[-1].at if self.arrivals else inf)
        if event == inf:
            raise SystemExit(f"stuck: {len(self.state.requests)} jobs wait, and none starts")
        return event

    def over(self, lease: Lease) -> float:
        """When a lease ends: with its job, or when it was told to."""
        notice = inf if lease.notice_until is None else lease.notice_until
        return min(self.jobs[lease.id].ends, notice)

    def arrive(self, now: float) -> bool:
        """Take in what has been created since."""
        new = []
        while self.arrivals and self.arrivals[-1].at <= now:
            job = Job.of(self.arrivals.pop())
            self.jobs[job.request.id] = job
            new.append(job.request)
        if new:
            self.state = replace(self.state, requests=[*self.state.requests, *new])
        return bool(new)

    def end(self, now: float) -> bool:
        """Let go what has ended or had to go; what was stopped comes back."""
        over = [lease for lease in self.state.leases if self.over(lease) <= now]
        if not over:
            return False
        back = []
        for lease in over:
            job = self.jobs[lease.id]
            if job.ends > now:
                self.lost += job.arrival.kind.gpus * (now - job.started)
                self.preempted[job.arrival.kind.name] += 1
                back.append(job.back(now))
            else:
                kind = job.arrival.kind.name
                self.waited[kind].append(job.started - job.arrival.at)
        gone = {lease.id for lease in over}
        self.state = replace(
            self.state,
            requests=[*self.state.requests, *back],
            leases=[lease for lease in self.state.leases if lease.id not in gone],
        )
        return True

    def one_pass(self, now: float) -> None:
        """Decide, and carry it out."""
        started = time.perf_counter()
        decided = plan(self.policy, self.state, now)
        self.passes.append((time.perf_counter() - started) * 1e3)
        then = self.now()
        for start in decided.starts:
            self.jobs[start.request.id].started = then
        self.state = self.state.following(decided, then, lambda _: 0.0)


def report(loop: Loop, wall: float, part: float, preemption: str) -> dict[str, Any]:
    """What came of it."""
    capacity = GROUPS * QUEUES * QUOTA
    jobs = [job.arrival.kind for job in loop.jobs.values()]
    work = sum(kind.gpus * kind.lasts for kind in jobs)
    bound = work / capacity
    admission = {kind.name: fmean(loop.waited[kind.name]) for kind in KINDS}
    ratios: dict[str, Any] = {"wall/bound": round(wall / bound, 3)}
    if part == 1:
        ratios["wall/kueue"] = round(wall / KUEUE_WALL, 3)
        ratios["admission/kueue"] = {
            name: round(waited / KUEUE_ADMISSION[name], 3) for name, waited in admission.items()
        }
    figures = {
        "preemption": preemption,
        "speed": loop.speed,
        "part": part,
        "jobs": len(jobs),
        "wall_s": round(wall, 2),
        "bound_s": round(bound, 2),
        "used": round(work / capacity / wall, 3),
        "lost": round(loop.lost / capacity / wall, 3),
        "mean_admission_s": {name: round(waited, 2) for name, waited in admission.items()},
        "passes": len(loop.passes),
        "pass_mean_ms": round(fmean(loop.passes), 2),
        "pass_max_ms": round(max(loop.passes), 2),
        "in_passes": round(sum(loop.passes) / 1e3 * loop.speed / wall, 3),
        "preempted": dict(loop.preempted),
    }
    return {"name": "kueue workload", "figures": figures, "ratios": ratios}


def main() -> None:
    """Run the workload and print its line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", type=float, default=0.1, help="of each queue's jobs; 1 for all")
    parser.add_argument("--preemption", choices=["off", "auto"], default="off")
    parser.add_argument("--speed", type=float, default=1.0, help="of the workload's clock")
    parser.add_argument("--gap", type=float, default=2.0, help="ms between passes, at least")
    options = parser.parse_args()
    arrivals = workload(options.part)[::-1]
    loop = Loop(policy_of(options.preemption), arrivals, options.speed, options.gap / 1e3)
    wall = loop.run()
    print(json.dumps(report(loop, wall, options.part, options.preemption)), flush=True)


if __name__ == "__main__":
    main()
