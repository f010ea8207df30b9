"""A large site at one moment, drawn at random with a seed: its policy, what runs, and a long queue.

Five pools of nodes with 8 GPUs share the GPUs evenly. In two of them seven nodes are idle and a gang of
64 waits for its quota: the eighth node comes free in 12 minutes, sooner than anything that waits could
end, so that what would fit on the idle nodes waits behind the gang (`lower_priority`). Two pools are
full. In the last one only a node is idle that a team does not lend.

Work comes from sources as people make it: backfills of runs that are alike, users with a few shapes of
their own, scheduled jobs. Ids are as long as run ids.
"""

from __future__ import annotations

import math
import uuid
from collections import defaultdict
from dataclasses import dataclass, field, replace
from operator import attrgetter
from random import Random
from typing import Any, NamedTuple

from dagster_gpufair.policy.checks import problems_of
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Account, Lease, Request, State

NOW = 1_800_000_000.0
MINUTE, HOUR = 60.0, 3600.0
GPU, NODE = 1000, 8000
DURATIONS = (0.5 * HOUR, 1 * HOUR, 4 * HOUR, 12 * HOUR, 24 * HOUR, None)
KINDS = ("experiment", "training", "evaluation", "batch_inference", "online_inference")
MAY_BORROW = KINDS[:-1]

GANG, IDLE_NODES = 64 * GPU, 7
RESERVED, FULL, KEPT = ("h100", "h200"), ("a100", "a30"), ("l40s",)
POOLS = RESERVED + FULL + KEPT
WANTED = (0.215, 0.215, 0.23, 0.19, 0.15)
"""How much of the queue wants each pool first."""

SMALL = {250: 5, 500: 10, 1000: 30, 2000: 15, 4000: 15, 8000: 15}
GANGS = {16000: 4, 24000: 1, 32000: 3, 48000: 1, 64000: 1}
ON_A_NODE = (
    (8000,),
    (4000, 4000),
    (4000, 2000, 2000),
    (2000, 2000, 2000, 1000, 1000),
    (4000, 1000, 1000, 1000, 500, 500),
    (1000,) * 8,
)


class Size(NamedTuple):
    """How large a site is: a tenth of the queue's length in GPUs, and teams that grow more slowly."""

    queued: int

    @property
    def gpus(self) -> int:
        return self.queued // 10

    @property
    def teams(self) -> int:
        """50 at 10,000 queued, 200 at 100,000."""
        return round(50 * (self.queued / 10_000) ** math.log10(4))


class Shape(NamedTuple):
    """What the runs of one source ask for alike."""

    tier: str
    pools: tuple[str, ...]
    gpus: int
    min_gpus: int | None
    gpus_per_node: int | None
    kind: str
    project: str | None
    max_duration: float | None


@dataclass
class Site:
    """What `site` draws; the policy is made last, so that quotas fit what runs."""

    size: Size
    rng: Random
    varied: bool = False
    leases: list[Lease] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    quota: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.teams = [f"team{number:03d}" for number in range(self.size.teams)]
        self.demand = [self.rng.uniform(0.5, 2) ** 2 for _ in self.teams]
        self.projects = dict.fromkeys(self.teams[::3], ("base", "next"))
        self.gang_teams = dict(zip(RESERVED, self.teams, strict=False))
        nodes = self.size.gpus // len(POOLS) // 8
        self.nodes = {pool: [f"{pool}-{node:04d}" for node in range(nodes)] for pool in POOLS}

    def id(self) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128)))

    def pick(self, weights: dict[Any, int]) -> Any:
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def team(self, beside: str | None = None) -> str:
        """Any team by its demand, but not this one."""
        while (team := self.rng.choices(self.teams, self.demand)[0]) == beside:
            pass
        return team

    def project(self, team: str) -> str | None:
        if team in self.projects and self.rng.random() < 0.4:
            return self.rng.choice(self.projects[team])
        return None

    # -- the queue ------------------------------------------------------------------------------

    def queue(self) -> None:
        """The gangs that hold the reservations, and work from sources until the queue is so long."""
        for pool, team in self.gang_teams.items():
            for number in range(3):
                shape = Shape("milestone", (pool,), GANG, None, None, "training", None, None)
                self.ask(team, f"user{number}", shape, NOW - 30 * HOUR + number)
        while len(self.requests) < self.size.queued:
            self.source()
        del self.requests[self.size.queued :]
        # As the ledger gives them.
        self.requests.sort(key=attrgetter("submitted", "id"))

    def source(self) -> None:
        """A backfill, a user's runs or a scheduled job's, of a team that has no gang in the pool."""
        rng, what = self.rng, self.pick({"backfill": 15, "user": 55, "job": 30})
        team = self.team()
        runs = {
            "backfill": self.backfill_runs(),
            "user": rng.randint(3, 12),
            "job": rng.randint(1, 6),
        }
        apart = {"backfill": 1.0, "user": 20 * MINUTE, "job": HOUR}[what]
        shapes = [self.shape(team, what) for _ in range(2 if what == "user" else 1)]
        if any(self.gang_teams.get(pool) == team for shape in shapes for pool in shape.pools):
            return
        name = f"{what}-{rng.getrandbits(32):08x}"
        self.sources[team].append(name)
        first = NOW - min(rng.expovariate(1 / (4 * HOUR)), 24 * HOUR)
        for number in range(runs[what]):
            submitted = min(first + number * apart, NOW - rng.uniform(0, MINUTE))
            self.ask(team, name, rng.choice(shapes), submitted)

    def backfill_runs(self) -> int:
        """Ten to a thousand partitions, each order of magnitude as often; up to a hundred if varied."""
        return round(10 ** self.rng.uniform(1, 2 if self.varied else 3))

    def shape(self, team: str, what: str) -> Shape:
        rng = self.rng
        gang = what != "backfill" and rng.random() < 0.25
        gpus = self.pick(GANGS if gang else SMALL)
        pools = tuple(rng.choices(POOLS, WANTED))
        tier = self.pick({"milestone": 10, "standard": 60, "exploratory": 30})
        if pools[0] in FULL and rng.random() < 0.01:
            tier = "critical"
        elif rng.random() < 0.2:
            pools += (rng.choice([pool for pool in POOLS if pool not in pools]),)
        return Shape(
            tier=tier,
            pools=pools,
            gpus=gpus,
            min_gpus=gpus // 2 if gpus >= 4000 and rng.random() < 0.1 else None,
            gpus_per_node=rng.choice((4000, 8000)) if gang and rng.random() < 0.3 else None,
            kind=self.pick(dict(zip(KINDS, (40, 30, 15, 10, 5), strict=True))),
            project=self.project(team),
            max_duration=rng.choice(DURATIONS),
        )

    def ask(self, team: str, source: str, shape: Shape, submitted: float) -> None:
        request = Request(
            id=self.id(),
            team=team,
            source=source,
            submitted=submitted,
            preempted=self.pick({0: 97, 1: 2, 2: 1}),
            cpus=8.0 * shape.gpus / GPU,
            memory_gib=64.0 * shape.gpus / GPU,
            **shape._asdict(),
        )
        self.requests.append(request)

    # -- what runs ------------------------------------------------------------------------------

    def run(self) -> None:
        """Every node is full, but those that are to be idle."""
        for pool, nodes in self.nodes.items():
            busy = list(nodes[IDLE_NODES if pool in RESERVED else pool in KEPT :])
            if pool in RESERVED:
                # The eighth node: it is free once this has ended, in 12 minutes.
                eighth = self.lease(pool, {busy.pop(): NODE}, duration=4 * HOUR)
                self.leases.append(replace(eighth, started=NOW - 4 * HOUR + 12 * MINUTE))
            while busy:
                if len(busy) > 8 and self.rng.random() < 0.1:
                    taken = {busy.pop(): NODE for _ in range(self.rng.choice((2, 4, 8)))}
                    self.leases.append(self.lease(pool, taken, self.rng.choice(DURATIONS)))
                    continue
                node = busy.pop()
                for gpus in self.rng.choice(ON_A_NODE):
                    self.leases.append(self.lease(pool, {node: gpus}, self.rng.choice(DURATIONS)))

    def lease(self, pool: str, nodes: dict[str, int], duration: float | None) -> Lease:
        rng, team = self.rng, self.team(beside=self.gang_teams.get(pool))
        started = NOW - rng.uniform(0.01, 0.99) * (8 * HOUR if duration is None else duration)
        known = self.sources[team]
        return Lease(
            id=self.id(),
            team=team,
            tier=self.pick({"milestone": 15, "standard": 60, "exploratory": 25}),
            pool=pool,
            gpus=sum(nodes.values()),
            started=started,
            nodes=nodes,
            project=self.project(team),
            max_duration=duration,
            source=rng.choice(known) if known and rng.random() < 0.5 else self.id()[:8],
            checkpointed=max(started, NOW - rng.uniform(0, HOUR)) if rng.random() < 0.5 else None,
        )

    # -- the policy -----------------------------------------------------------------------------

    def policy(self, preemption: str) -> Policy:
        """Quotas to what runs: all used up beside a waiting gang, above and below the use elsewhere."""
        use: dict[tuple[str, str], int] = defaultdict(int)
        for lease in self.leases:
            use[lease.team, lease.pool] += lease.gpus
        for pool in POOLS:
            self.share_out(pool, {team: use[team, pool] for team in self.teams})
        teams = {name: self.rules(name, use) for name in self.teams}
        teams["oncall"] = {"quota": {"l40s": 8}, "lend_limit": {"l40s": 0}}
        policy = Policy.model_validate(
            {
                "pools": {
                    pool: {"nodes": dict.fromkeys(nodes, 8)} for pool, nodes in self.nodes.items()
                },
                "teams": teams,
                "borrowing": {"kinds": list(MAY_BORROW)},
                "preemption": {"mode": preemption},
            }
        )
        assert problems_of(policy) == []
        return policy

    def share_out(self, pool: str, use: dict[str, int]) -> None:
        """Whole GPUs of quota for each team; a waiting gang's team has enough for one of its gangs."""
        to_share = len(self.nodes[pool]) * 8
        if pool in RESERVED:
            to_share -= GANG // GPU
            wanted = {team: float(gpus) for team, gpus in use.items()}
        else:
            to_share = int(to_share * 0.9) - 8 * (pool in KEPT)
            wanted = {team: (gpus + GPU) * self.rng.uniform(0.5, 1.6) for team, gpus in use.items()}
        part = to_share / max(sum(wanted.values()) / GPU, to_share)
        for team, gpus in wanted.items():
            self.quota[team, pool] = int(gpus / GPU * part)
        if pool in RESERVED:
            self.quota[self.gang_teams[pool], pool] = GANG // GPU

    def rules(self, team: str, use: dict[tuple[str, str], int]) -> dict[str, Any]:
        rng, rules = self.rng, defaultdict[str, Any](dict)
        rules["tiers"] = ["critical", "milestone", "standard", "exploratory"]
        rules["weight"] = rng.choice((1, 1, 1, 2, 3))
        for pool in POOLS:
            quota = rules["quota"][pool] = self.quota[team, pool]
            if pool in RESERVED:
                continue
            if rng.random() < 0.1:
                rules["lend_limit"][pool] = quota // 2
            if rng.random() < 0.1:
                rules["borrow_limit"][pool] = max(8, math.ceil(use[team, pool] / GPU) - quota)
        if team in self.projects:
            own = {pool: self.quota[team, pool] * 2 // 5 for pool in FULL + KEPT}
            rules["projects"] = {self.projects[team][0]: {"quota": own}}
        return dict(rules)

    def state(self) -> State:
        rng = self.rng
        return State(
            requests=self.requests,
            leases=self.leases,
            used={
                (Account(team), pool): rng.expovariate(1 / 200)
                for team in self.teams
                for pool in POOLS
                if rng.random() < 0.7
            },
            source_starts={
                (team, source): NOW - rng.uniform(0, 2 * HOUR)
                for team, sources in self.sources.items()
                for source in sources
                if rng.random() < 0.2
            },
        )


def site(queued: int, preemption: str, seed: int = 1, varied: bool = False) -> tuple[Policy, State]:
    """The policy and the moment ``NOW`` of a site with so many waiting requests (3,000 at least)."""
    drawn = Site(Size(queued), Random(seed), varied)
    drawn.queue()
    drawn.run()
    return drawn.policy(preemption), drawn.state()


def with_free(state: State, part: float, seed: int = 1) -> State:
    """The moment after so much of all GPUs in use has come free at once, wherever it was."""
    leases = sorted(state.leases, key=lambda lease: lease.id)
    Random(seed).shuffle(leases)
    to_free = part * sum(lease.gpus for lease in leases)
    while to_free > 0:
        to_free -= leases.pop().gpus
    return replace(state, leases=leases)
