"""Random policies and states for hypothesis: small, and full of ties and odd names.

Amounts and times come from short lists, so that requests are often alike, shapes often clash and
scores are often equal. In `policies` and `states` some names are not in the policy, and some pools are
smaller than what is used; `stories` begin with all rules that a policy may have, and a sound state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from typing import Any

from hypothesis import strategies as st
from scheduling_checks import Books
from scheduling_world import NOW, Move, Story

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Account, Lease, Promise, Request, State

POOLS = ("p", "q", "r")
TEAMS = ("a", "b", "c")
NODES = ("n1", "n2", "n3", "gone")
TIERS = ("critical", "milestone", "standard", "exploratory")
KINDS = (None, "training", "evaluation")
LISTS = (("p",), ("p",), ("q",), ("p", "q"), ("q", "p"), ("r",), ("r", "p"))
SOURCES = (None, "s1", "s2")

gpus = st.sampled_from([500, 1000, 1000, 2000, 3000, 4000, 6000])
ago = st.sampled_from([0, 36, 360, 3600, 7200, 43200, 90000])


def _maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.one_of(st.none(), strategy)


def _per_pool(amounts: st.SearchStrategy) -> st.SearchStrategy:
    return st.dictionaries(st.sampled_from(POOLS[:2]), amounts, max_size=2)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    amounts = st.sampled_from([0, 1, 2, 3, 4, 6])
    nodes = st.dictionaries(
        st.sampled_from(NODES[:3]), st.sampled_from([2, 4, 4, 8]), min_size=1, max_size=3
    )
    pools = {
        name: draw(
            st.one_of(
                st.builds(lambda nodes: {"nodes": nodes}, nodes),
                st.builds(lambda gpus: {"gpus": gpus}, st.sampled_from([1, 6, 12])),
            )
        )
        for name in POOLS[: draw(st.sampled_from([1, 2, 2]))]
    }
    teams = {
        name: {
            "quota": draw(_per_pool(amounts)),
            "borrow_limit": draw(_per_pool(amounts)),
            "lend_limit": draw(_per_pool(amounts)),
            "weight": draw(st.sampled_from([1, 1, 2, 0.5])),
        }
        for name in TEAMS[: draw(st.sampled_from([1, 2, 3, 3]))]
    }
    borrowing = {
        "mode": draw(st.sampled_from([*["auto"] * 5, "off"])),
        "tiers": draw(st.sampled_from(["all", "all", "all", ["standard", "milestone"]])),
        "kinds": draw(st.sampled_from(["all", "all", "all", ["training"]])),
    }
    fair_share = {"strength": draw(st.sampled_from([1, 0, 10]))}
    return Policy.model_validate(
        {"pools": pools, "teams": teams, "borrowing": borrowing, "fair_share": fair_share}
    )


@st.composite
def requests(draw: st.DrawFn, id: str) -> Request:
    size = draw(gpus)
    return Request(
        id=id,
        team=draw(st.sampled_from([*TEAMS * 4, "stranger"])),
        tier=draw(st.sampled_from([*TIERS * 2, *["standard"] * 6, "no_tier"])),
        pools=draw(st.sampled_from(LISTS)),
        gpus=size,
        submitted=NOW - draw(ago),
        kind=draw(st.sampled_from(KINDS)),
        min_gpus=draw(_maybe(st.sampled_from([500, 1000, size]))),
        gpus_per_node=draw(_maybe(st.sampled_from([1000, 2000]))) if draw(st.booleans()) else None,
        max_duration=draw(_maybe(st.just(3600.0))),
        source=draw(st.sampled_from(SOURCES)),
        preempted=draw(st.sampled_from([0, 0, 0, 1, 4])),
        priority=draw(st.sampled_from([0, 0, 0, 3, -20])),
    )


@st.composite
def leases(draw: st.DrawFn, id: str, named: bool) -> Lease:
    on = st.dictionaries(st.sampled_from(NODES), st.just(1000), min_size=int(named), max_size=3)
    nodes = draw(on)
    size = sum(nodes.values()) or draw(gpus)
    return Lease(
        id=id,
        team=draw(st.sampled_from([*TEAMS, "stranger"])),
        tier=draw(st.sampled_from(TIERS)),
        pool=draw(st.sampled_from(POOLS)),
        gpus=size,
        started=NOW - draw(ago),
        nodes=nodes,
        max_duration=draw(_maybe(st.sampled_from([3600.0, 86400.0]))),
        source=draw(st.sampled_from(SOURCES)),
    )


@st.composite
def states(draw: st.DrawFn, named: bool = False) -> State:
    """``named``: all leases say which nodes they are on."""
    queued = [draw(requests(f"q{at}")) for at in range(draw(st.integers(0, 16)))]
    running = [draw(leases(f"l{at}", named)) for at in range(draw(st.integers(0, 5)))]
    blocked = draw(st.sets(st.sampled_from([f"q{at}" for at in range(16)]), max_size=2))
    return State(
        requests=queued,
        leases=running,
        used=draw(
            st.dictionaries(
                st.tuples(
                    st.sampled_from([Account(name) for name in TEAMS]), st.sampled_from(POOLS)
                ),
                st.sampled_from([0.0, 1.0, 8.0, 0.1]),
                max_size=4,
            )
        ),
        source_starts=draw(
            st.dictionaries(
                st.tuples(st.sampled_from(TEAMS), st.sampled_from(SOURCES[1:])),
                ago.map(lambda seconds: NOW - seconds),
                max_size=3,
            )
        ),
        cordoned=draw(
            st.dictionaries(
                st.sampled_from(POOLS),
                st.frozensets(st.sampled_from(NODES), max_size=2),
                max_size=2,
            )
        ),
        blocked={id: ("run_limit", f"{id} is over Dagster's own limit.") for id in blocked},
    )


# Stories: all rules, and a state that they could have led to

Pick = Callable[..., Any]
PROJECTS = ("x", "y")
SCHEDULES = ("0 * * * *", "*/30 * * * *", "0 15 * * *", "0 8 13 * *")
SOME_TIME = (600.0, 1800.0, 3600.0, 14400.0)


def _picker(draw: st.DrawFn) -> Pick:
    """One of some values, each as likely as it is often named."""
    return lambda *values: draw(_one_of(values))


@cache
def _one_of(values: tuple[Any, ...]) -> st.SearchStrategy:
    return st.sampled_from(values)


@st.composite
def sound_policies(
    draw: st.DrawFn, like: Policy | None = None, plain: bool = False, **sections: Mapping[str, Any]
) -> Policy:
    """All rules but those of some ``sections``, which are given.

    ``like``: with the pools of another. ``plain``: no fast lane, grants, windows or ceilings.
    """
    pick = _picker(draw)
    pools = (
        _pools(pick)
        if like is None
        else like.model_dump(include={"pools"}, exclude_unset=True)["pools"]
    )
    sizes = {name: Policy(pools={name: pool}, teams={}).pools[name] for name, pool in pools.items()}
    left = {name: pool.capacity // 1000 for name, pool in sizes.items()}
    teams = {name: _team(pick, left, plain) for name in TEAMS[: pick(2, 3, 3)]}
    written: dict[str, Any] = {"pools": pools, "teams": teams}
    if pick(0, 0, 1):
        written["tiers"] = {
            pick("standard", "exploratory", "milestone"): {
                "preemptible": pick("never", "borrowed", "always"),
                "points": pick(500, 1000, 2000, 3000),
            }
        }
    written["borrowing"] = _borrowing(pick)
    written["preemption"] = _preemption(pick)
    if like is None and not sections.keys() & {"borrowing", "preemption"}:
        for pool in pools.values():
            pool |= _of_one(pick, "preemption", _preemption) | _of_one(
                pick, "borrowing", _borrowing
            )
        for team in teams.values():
            team |= _of_one(pick, "borrowing", _borrowing)
    written["backfill"] = {
        "enabled": pick(True, True, True, False),
        "reserve_after": pick("30m", "0s", "2h"),
    }
    written["fair_share"] = {"strength": pick(1, 1, 0, 10)}
    written["ordering"] = {"wait_points_per_hour": pick(100, 100, 0)}
    if not plain:
        written |= _extras(pick, sizes, teams)
    return Policy.model_validate({**written, **sections})


def _borrowing(pick: Pick) -> dict[str, Any]:
    return {
        "mode": pick(*["auto"] * 11, "off"),
        "max_duration": pick(None, None, None, "10m", "1h"),
        "tiers": list(pick(*[()] * 11, ("standard", "milestone"))) or "all",
        "kinds": list(pick(*[()] * 15, ("training",))) or "all",
    }


def _preemption(pick: Pick) -> dict[str, Any]:
    return {
        "mode": pick(*["auto"] * 5, "approval", "off"),
        "askers": list(pick(*[()] * 9, ("standard", "milestone"))) or "all",
        "grace": pick("5m", "5m", "0s", "30m"),
        "min_runtime": pick("10m", "10m", "0s", "1h"),
        "max_per_run": pick(3, 1, 0),
        "rebalance": pick(False, True),
    }


def _of_one(pick: Pick, key: str, rules: Callable[[Pick], dict[str, Any]]) -> dict[str, Any]:
    """A key of these rules that differs for one pool or one team; most have none."""
    if pick(*[True] * 5, False):
        return {}
    drawn = rules(pick)
    name = pick(*drawn)
    return {key: {name: drawn[name]}}


def _pools(pick: Pick) -> dict[str, Any]:
    def pool() -> dict[str, Any]:
        if pick(0, 1):
            return {"gpus": pick(1, 2, 4, 4, 6, 8)}
        return {"nodes": {node: pick(1, 2, 2, 4, 4) for node in NODES[: pick(1, 2, 2, 3)]}}

    return {name: pool() for name in POOLS[: pick(1, 1, 1, 2)]}


def _team(pick: Pick, left: dict[str, int], plain: bool) -> dict[str, Any]:
    """One team; its quotas are taken from what is left of the pools."""
    quota = {pool: min(pick(0, 1, 2, 2, 3, 4, 4), left[pool]) for pool in left}
    for pool, gpus in quota.items():
        left[pool] -= gpus
    team: dict[str, Any] = {"quota": quota, "weight": pick(1, 1, 2, 0.5), **_limits(pick, quota)}
    if pick(0, 0, 1):
        in_team = dict(quota)
        team["projects"] = {}
        for name in PROJECTS[: pick(1, 1, 2)]:
            own = {pool: min(pick(0, 1, 1, 2), in_team[pool]) for pool in in_team}
            for pool, gpus in own.items():
                in_team[pool] -= gpus
            project = {"quota": own, "weight": pick(1, 1, 2), **_limits(pick, own)}
            team["projects"][name] = project
    if not plain and pick(0, 0, 0, 0, 1):
        team["ceilings"] = {"cpus": pick(1, 2, 4)}
    return team


def _limits(pick: Pick, quota: Mapping[str, int]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for pool in quota:
        for name, amount in (
            ("borrow_limit", pick(*[None] * 7, 0, 1, 2)),
            ("lend_limit", pick(*[None] * 5, 0, 1)),
        ):
            if amount is not None:
                limits.setdefault(name, {})[pool] = amount
    return limits


def _extras(pick: Pick, pools: Mapping[str, Any], teams: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for some GPUs or some time only: lanes, grants, windows."""
    extras: dict[str, Any] = {}
    for name, pool in pools.items():
        if pick(0, 0, 0, 1):
            size = min(pick(1, 1, 2), pool.capacity // 1000)
            largest = pick(0.5, 1, size)
            lane = {"gpus": size, "max_gpus": largest, "max_duration": pick("10m", "30m", "1h")}
            extras.setdefault("fast_lane", {})[name] = lane
    for _ in range(pick(0, 0, 0, 1, 2)):
        team = pick(*teams)
        grant = {
            **_held(pick, pools, team),
            "project": pick(None, *teams[team].get("projects", {})),
            "approved_by": "ann",
            "reason": "a deadline",
        }
        extras.setdefault("grants", []).append(grant)
    for _ in range(pick(0, 0, 0, 1, 2, 3)):
        window = _held(pick, pools, pick(*teams))
        if pick(0, 0, 1):
            window = {key: window[key] for key in ("team", "pool", "gpus")}
            window |= {"cron": pick(*SCHEDULES), "duration": pick("20m", "2h")}
        extras.setdefault("windows", []).append(window)
    return extras


def _held(pick: Pick, pools: Mapping[str, Any], team: str) -> dict[str, Any]:
    pool = pick(*pools)
    gpus = min(pick(1, 2, 4), pools[pool].capacity // 1000)
    start, length = pick(-3600, 0, 600, 3600, 7200), pick(1800, 7200, 86400)
    first, last = (datetime.fromtimestamp(NOW + at, timezone.utc) for at in (start, start + length))
    return {"team": team, "pool": pool, "gpus": gpus, "from": first, "until": last}


def _asking(
    pick: Pick,
    policy: Policy,
    id: str,
    bounded: bool = False,
    whole: bool = False,
    teams: Sequence[str] = (),
) -> Request:
    """One request of some of the policy's teams. ``bounded``: with an end; ``whole``: of whole GPUs."""
    team = pick(*teams or policy.teams)
    size = pick(
        *([] if whole else [500, pick(100, 300, 600, 700, 900, 1500)]),
        *[1000] * 4,
        *[2000] * 3,
        3000,
        4000,
        6000,
    )
    pools = pick(*((pool,) for pool in policy.pools), tuple(policy.pools))
    odd = pick(*[False] * 4, True)
    return Request(
        id=id,
        team=team,
        tier=pick(*["standard"] * 4, "milestone", "exploratory", "exploratory", "critical"),
        pools=pools,
        gpus=size,
        submitted=NOW - pick(0, 60, 1800, 3600, 43200),
        project=pick(None, *policy.teams[team].projects),
        kind=pick(None, "training") if odd else None,
        min_gpus=pick(None, size // 2, min(size, 1000)) if odd else None,
        gpus_per_node=pick(None, 1000, 2000) if odd else None,
        max_duration=pick(*SOME_TIME) if bounded else pick(None, *SOME_TIME),
        source=pick(None, "s1") if odd else None,
        preempted=pick(0, 1, 3) if odd else 0,
        cpus=pick(0, 1, 2) if odd else 0,
    )


def _running(
    pick: Pick, policy: Policy, state: State, id: str, bounded: bool, whole: bool
) -> State:
    """The state with one more lease, if there is room where it would be. The last team has most."""
    *others, last = policy.teams
    asked = _asking(pick, policy, id, bounded, whole, teams=(*others, *[last] * 3))
    pool, since = asked.pools[0], pick(0, 300, 600, 3600, 4000, 7200, 20000)
    books = Books(policy, replace(state, cordoned={}), NOW)
    if asked.max_duration is not None and (bounded or pick(*[0] * 7, 1) == 0):
        # Now and then one goes on past its bound.
        since = min(since, asked.max_duration - 60)
    gpus = min(asked.gpus, pick(1000, 1000, 2000, *books.sizes(pool).values()))
    with_room = [node for node in books.sizes(pool) if books.fit_on(pool, node, [gpus])]
    if not with_room:
        return state
    node = pick(*with_room)
    lease = Lease(
        id=id,
        team=asked.team,
        tier=asked.tier,
        pool=pool,
        gpus=gpus,
        started=NOW - since,
        nodes={node: gpus} if node else {},
        project=asked.project,
        max_duration=asked.max_duration,
        source=asked.source,
        preempted=asked.preempted,
        cpus=asked.cpus,
        checkpointed=pick(None, None, NOW - min(since, 120)),
    )
    return replace(state, leases=[*state.leases, lease])


def _promising(pick: Pick, policy: Policy, state: State) -> State:
    """The state with something promised to one of the requests, and notice given for it."""
    for request in state.requests:
        asked = replace(request, gpus_per_node=None)
        pool, gpus = asked.pools[0], asked.sizes[-1]
        books = Books(policy, state, NOW)
        if asked.id in state.blocked or books.may_start(asked, pool, gpus):
            continue
        for lease in state.leases:
            then, node = books.without([lease.id]), next(iter(lease.nodes), "")
            if (
                lease.pool == pool
                and node in then.ready(pool)
                and then.may_start(asked, pool, gpus)
                and then.fit_on(pool, node, [gpus])
            ):
                notice = replace(lease, notice_until=NOW + pick(0, 60, 300), notice_for=asked.id)
                promise = Promise(pool, gpus, {node: gpus} if node else {})
                promised = replace(asked, promised=promise)
                return replace(
                    state,
                    requests=[promised if each is request else each for each in state.requests],
                    leases=[notice if each is lease else each for each in state.leases],
                )
    return state


@st.composite
def sound_states(
    draw: st.DrawFn,
    policy: Policy,
    most_requests: int = 9,
    most_leases: int = 9,
    bounded: bool = False,
    whole: bool = False,
    plain: bool = False,
) -> State:
    """A state that this policy or an earlier one could have led to.

    ``plain``: nothing is cordoned, blocked or promised.
    """
    pick = _picker(draw)
    state = State()
    for at in range(_many(pick, most_leases)):
        state = _running(pick, policy, state, f"l{at}", bounded, whole)
    asked = range(_many(pick, most_requests))
    requests = [_asking(pick, policy, f"q{at}", bounded, whole) for at in asked]
    used = {}
    if pick(0, 0, 1):
        for name, team in policy.teams.items():
            account = Account(name, pick(None, *team.projects))
            used[account, pick(*policy.pools)] = pick(0.0, 1.0, 8.0)
    state = replace(state, requests=requests, used=used)
    if plain:
        return state
    if pick(0, 0, 0, 1):
        pool = pick(*policy.pools)
        node = pick(*(policy.pools[pool].nodes or ("none",)))
        state = replace(state, cordoned={pool: frozenset({node})})
    if pick(*[0] * 9, 1):
        state = replace(state, blocked={"q0": ("run_limit", "Dagster's own limit is reached.")})
    return _promising(pick, policy, state) if pick(0, 0, 1) else state


def _many(pick: Pick, most: int) -> int:
    """Any number, but often near the most."""
    return pick(*range(most + 1), *range(most // 2, most + 1), *[most] * (most // 2))


@st.composite
def stories(draw: st.DrawFn, most_moves: int = 4) -> Story:
    """Any policy, any state, and a few things that happen."""
    pick = _picker(draw)
    policy = draw(sound_policies())
    state = draw(sound_states(policy))
    moves = [_move(draw, pick, policy, at) for at in range(pick(*range(most_moves + 1)))]
    return Story(policy, state, tuple(moves))


def _move(draw: st.DrawFn, pick: Pick, policy: Policy, at: int) -> Move:
    what = pick(*["wait"] * 4, "wait_for_something", "arrive", "arrive", "end", "end", "approve")
    what = pick(what, what, what, "cancel", "rule", "cordon", "uncordon")
    if what == "wait":
        return Move(what, (pick(0, 60, 300, 600, 1800, 7200),))
    if what == "arrive":
        return Move(what, (_asking(pick, policy, f"a{at}"),))
    if what in ("end", "cancel", "approve"):
        return Move(what, (pick(*range(8)),))
    if what in ("cordon", "uncordon"):
        pool = pick(*policy.pools)
        return Move(what, (pool, pick(*(policy.pools[pool].nodes or ("none",)))))
    if what == "rule":
        return Move(what, (_kept_names(draw(sound_policies(like=policy)), policy),))
    return Move(what)


def _kept_names(policy: Policy, old: Policy) -> Policy:
    """A policy that still has all teams of an older one, though maybe without their quotas."""
    gone = {
        name: team.model_copy(update={"quota": {}, "projects": {}, "lend_limit": {}})
        for name, team in old.teams.items()
        if name not in policy.teams
    }
    return policy.model_copy(update={"teams": {**policy.teams, **gone}})


@st.composite
def calm_stories(draw: st.DrawFn) -> Story:
    """Preemption is on, and nothing but its consequences happens: no borrowing time, no end of a grant."""
    pick = _picker(draw)
    policy = draw(sound_policies(plain=True, borrowing={}, preemption=_automatic(pick)))
    return Story(policy, draw(sound_states(policy, plain=True)))


@st.composite
def covered_stories(draw: st.DrawFn) -> Story:
    """Preemption is on, and what it may not stop has bounds; pools without nodes, and whole GPUs."""
    pick = _picker(draw)
    pools = {name: {"gpus": pick(2, 4, 6)} for name in POOLS[: pick(1, 1, 2)]}
    like = Policy.model_validate({"pools": pools, "teams": {}})
    # Borrowing time so short that it is renewed for as long as a test looks would show nothing.
    borrowing = {"max_duration": pick(None, None, "1h")}
    rules = sound_policies(
        like=like, plain=True, tiers={}, borrowing=borrowing, preemption=_automatic(pick)
    )
    policy = draw(rules)
    state = draw(sound_states(policy, plain=True, whole=True))

    def bounded(its: Lease | Request) -> Lease | Request:
        never = policy.tiers[its.tier].preemptible == "never"
        return replace(its, max_duration=36000.0) if never and its.max_duration is None else its

    requests, leases = map(bounded, state.requests), map(bounded, state.leases)
    return Story(policy, replace(state, requests=list(requests), leases=list(leases)))


def _automatic(pick: Pick) -> dict[str, Any]:
    return {
        "mode": "auto",
        "grace": pick("5m", "0s"),
        "min_runtime": pick("10m", "0s", "1h"),
        "max_per_run": pick(3, 1, 0),
        "rebalance": pick(False, True),
    }


@st.composite
def ending_stories(draw: st.DrawFn) -> Story:
    """All work has bounds, and who waits soon ranks above what was stopped and came back.

    Borrowing has no end: in a world where what was stopped begins anew, those that borrow could take turns
    for good.
    """
    policy = draw(sound_policies(ordering={"wait_points_per_hour": 1000}))
    policy = _without_terms(policy)
    return Story(policy, draw(sound_states(policy, bounded=True)))


def _without_terms(policy: Policy) -> Policy:
    written = policy.model_dump(by_alias=True, exclude_unset=True)
    for rules in (written, *written["pools"].values(), *written["teams"].values()):
        if "borrowing" in rules:
            rules["borrowing"].pop("max_duration", None)
    return Policy.model_validate(written)


@st.composite
def lasting_stories(draw: st.DrawFn) -> Story:
    """The rules stay the same for good: no grants, no windows."""
    policy = draw(sound_policies(grants=[], windows=[]))
    return Story(policy, draw(sound_states(policy)))
