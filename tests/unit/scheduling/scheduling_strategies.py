"""Random policies and states for hypothesis: small, and full of ties and odd names.

Amounts and times come from short lists, so that requests are often alike, shapes often clash and
scores are often equal. Some names are not in the policy, some pools are smaller than what is used.
"""

from __future__ import annotations

from hypothesis import strategies as st

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Account, Lease, Request, State

NOW = 1_000_000.0
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
