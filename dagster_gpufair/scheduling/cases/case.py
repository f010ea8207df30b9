"""Decision cases: a policy, a moment, and what must be decided then.

The file of a case is YAML. Times in it are moments, or offsets from ``now`` (``-2h``); those of its
policy's grants and windows too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from dagster_gpufair.policy.loading import policy_from
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.problems import PolicyError, Problem, dotted, shown, unknown
from dagster_gpufair.policy.quantities import ONE_GPU, format_gpus, gpus_number
from dagster_gpufair.policy.yaml_text import read_yaml
from dagster_gpufair.scheduling.cases.case_file import (
    CaseFile,
    Decision,
    Expectation,
    LeaseRow,
    RequestRow,
    offset,
    parse_time,
    worded,
)
from dagster_gpufair.scheduling.model import (
    UNNAMED,
    Account,
    Cards,
    Lease,
    Plan,
    Points,
    Promise,
    Reason,
    Request,
    State,
    Waiting,
)
from dagster_gpufair.scheduling.order import Key, comparison_key
from dagster_gpufair.scheduling.plan import plan

_ANY_TIME = datetime(2026, 6, 1, 12, tzinfo=timezone.utc).timestamp()
"""What ``now`` is where a case does not say."""
_DECIMALS = 3
"""Of points."""

PolicyReader = Callable[[str], Policy]
"""Reads the policy file that a case names, as the case writes it."""


class Difference(NamedTuple):
    """One thing that a case expects and a plan does not give, or the other way round.

    ``expected`` and ``found`` are as in the file of the case: ids, reasons, numbers of GPUs, and None
    where there is nothing.
    """

    key: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.key}: expected {_said(self.expected)}, found {_said(self.found)}"


@dataclass(frozen=True, slots=True)
class Case:
    """A policy, a moment, and what must be decided then (None: it does not say)."""

    name: str
    policy: Policy
    state: State
    now: float
    expect: Expectation | None

    def differences(self, decided: Plan) -> list[Difference]:
        """What of ``expect`` a plan for this moment does not meet; what is absent is not compared."""
        if self.expect is None:
            return []
        found = _unmet(self.expect, decided, self.state, self.now)
        if self.expect.again is not None:
            after = self.state.following(decided, self.now, self.policy.grace)
            again = plan(self.policy, after, self.now)
            # What a person is asked is asked again until it is answered: that is no change.
            asked = [each for each in decided.preemptions if each.awaits_approval]
            changes = [each for each in again.preemptions if each not in asked]
            again = replace(again, preemptions=changes)
            found += [
                difference._replace(key=dotted("again", difference.key))
                for difference in _unmet(self.expect.again, again, after, self.now)
            ]
        return found


def _unmet(expect: Decision, decided: Plan, state: State, now: float) -> list[Difference]:
    found: list[Difference] = []
    if expect.start is not None:
        started = [start.request.id for start in decided.starts]
        if started != expect.start:
            found.append(Difference("start", expect.start, started))
    if expect.preempt is not None:
        wanted = {asker: sorted(set(ids)) for asker, ids in expect.preempt.items() if ids}
        victims = {
            each.request.id: sorted(victim.lease.id for victim in each.victims)
            for each in decided.preemptions
        }
        found += _unlike("preempt", wanted, victims, sorted({*wanted, *victims}))
    if expect.wait is not None:
        reasons = decided.reasons()
        found += _unlike("wait", expect.wait, reasons, expect.wait or reasons)
    if expect.use is not None:
        use = _use_after(decided, state, now)
        for team in expect.use or sorted(use):
            pools, theirs = expect.use.get(team, {}), use.get(team, Counter())
            expected = {pool: gpus_number(gpus) for pool, gpus in pools.items()}
            in_use = {pool: gpus_number(theirs[pool]) for pool in pools or sorted(theirs)}
            found += _unlike(dotted("use", team), expected, in_use, in_use)
    return found


def _use_after(decided: Plan, state: State, now: float) -> dict[str, Counter[str]]:
    """GPUs in use by team and pool once the starts have happened."""
    use: dict[str, Counter[str]] = {}
    for lease in state.after(decided.starts, now).leases:
        use.setdefault(lease.team, Counter())[lease.pool] += lease.gpus
    return use


def parse_case(text: str | bytes, source: str, policy_file: PolicyReader | None = None) -> Case:
    """The case that a text says. Without ``policy_file``, its policy must stand in it.

    Raises:
        PolicyError: with every problem found, each at its key.
    """
    data, problems = read_yaml(text, source)
    if data is None:
        raise PolicyError(
            [Problem("", "is empty; a case has a policy, running and queued")], source
        )
    return case_from(data, source, problems, policy_file)


def case_from(
    data: Any,
    source: str,
    written: Sequence[Problem] = (),
    policy_file: PolicyReader | None = None,
) -> Case:
    """The case in values that were read already. ``written`` are problems with how they are written.

    Raises:
        PolicyError: with every problem found, each at its key.
    """
    if not isinstance(data, dict):
        message = f"must be keys and values, from policy: on, not {shown(data)}"
        raise PolicyError([*written, Problem("", message)], source)
    found: list[Problem] = []
    policy, file = None, None
    try:
        now = _ANY_TIME if data.get("now") is None else parse_time(data["now"], _ANY_TIME)
    except ValueError as error:
        now = _ANY_TIME
        found.append(Problem("now", str(error)))
    try:
        file = CaseFile.model_validate(data, context={"now": now})
    except ValidationError as error:
        found += worded(error)
    try:
        policy = _policy(data.get("policy"), now, policy_file)
    except PolicyError as error:
        found += error.problems
    found += _misnamed(data)
    # A value that is written wrongly is no more than that.
    unread = {problem.path for problem in written}
    if file is not None and policy is not None:
        found += _on_cards_that_cannot_be(file, policy)
    problems = [*written, *(problem for problem in found if problem.path not in unread)]
    if problems or file is None or policy is None:
        raise PolicyError(problems, source)
    return Case(file.name, policy, _state(file), now, file.expect)


def as_data(plan: Plan) -> dict[str, Any]:
    """A plan for programs: plain values with stable keys, GPUs as numbers, times in UTC.

    ``wait`` has every request, in the order of the line.
    """
    return {
        "start": [
            {
                "id": start.request.id,
                "pool": start.pool,
                "gpus": gpus_number(start.gpus),
                "nodes": _nodes(start.nodes),
                "cards": _cards(start.cards),
                "class": start.class_.label,
                "score": round(start.points.score, _DECIMALS),
                "points": _points(start.points),
            }
            for start in plan.starts
        ],
        "preempt": [
            {
                "for": each.request.id,
                "victims": [victim.lease.id for victim in each.victims],
                "kind": each.kind,
                "rules": {victim.lease.id: victim.rule for victim in each.victims},
                "pool": each.promise.pool,
                "gpus": gpus_number(each.promise.gpus),
                "nodes": _nodes(each.promise.nodes),
                "approval": each.awaits_approval,
            }
            for each in plan.preemptions
        ],
        "wait": [
            {
                "id": request.id,
                "reason": group.reason,
                "message": group.message,
                "pool": group.pool,
                "class": group.class_.label,
                "score": round(points.score, _DECIMALS),
                "points": _points(points),
                "blockers": list(group.blockers),
            }
            for group, request, points in in_line(plan)
        ],
        "reservations": [
            {
                "id": each.request.id,
                "pool": each.pool,
                "at": None if each.at is None else _iso(each.at),
                "gpus": gpus_number(each.gpus),
                "nodes": _nodes(each.nodes),
                "of_quota": each.of_quota,
            }
            for each in plan.reservations
        ],
        "withdrawn": list(plan.withdrawn),
        "renewed": list(plan.renewed),
    }


def in_line(plan: Plan) -> list[tuple[Waiting, Request, Points]]:
    """Every request that waits, with its group and its points, the best first."""

    def key(waits: tuple[Waiting, Request, Points]) -> Key:
        group, request, points = waits
        return comparison_key(
            group.class_,
            group.saturation,
            group.inside,
            points.score,
            request.submitted,
            request.id,
        )

    everyone = (
        (group, request, group.points_of(request))
        for group in plan.waiting
        for request in group.requests
    )
    return sorted(everyone, key=key)


def _policy(written: Any, now: float, policy_file: PolicyReader | None) -> Policy | None:
    """The policy of a case, or of the file that it names; None if it says neither.

    Raises:
        PolicyError: with every problem found, at the case's key.
    """
    if written is None:
        return None
    if not isinstance(written, str) or policy_file is None:
        return policy_from(_with_moments(written, now), under="policy")
    try:
        return policy_file(written)
    except PolicyError as error:
        raise PolicyError(
            [Problem("policy", f"{written}: {problem}") for problem in error.problems]
        ) from None


def _state(file: CaseFile) -> State:
    return State(
        requests=[_request(row) for row in file.queued],
        leases=[_lease(row) for row in file.running],
        used={
            (_account(name), pool): hours
            for name, pools in file.used.items()
            for pool, hours in pools.items()
        },
        cordoned={pool: frozenset(nodes) for pool, nodes in file.cordoned.items()},
        blocked={
            id: (cast(Reason, reason), "The case says so.") for id, reason in file.blocked.items()
        },
    )


def _lease(row: LeaseRow) -> Lease:
    same = row.model_dump(exclude={"kind", "node", "nodes", "cards"})
    return Lease(nodes=row.placement, cards=row.cards, **same)


def _request(row: RequestRow) -> Request:
    same = row.model_dump(exclude={"pool", "pools", "promised"})
    return Request(pools=row.liking, promised=_promise(row), **same)


def _promise(row: RequestRow) -> Promise | None:
    if row.promised is None:
        return None
    nodes = row.promised.nodes
    return Promise(row.promised.pool, sum(nodes.values()) or row.gpus, nodes)


def _account(name: str) -> Account:
    """From ``team`` or ``team/project``."""
    team, _, project = name.partition("/")
    return Account(team, project or None)


def _with_moments(policy: Any, now: float) -> Any:
    """A policy as written, but with the moments that the offsets in its grants and windows stand for."""

    def moment(value: Any) -> Any:
        try:
            seconds = offset(value)
        except ValueError:
            return value  # The policy says what is wrong with it, at its key.
        return value if seconds is None else datetime.fromtimestamp(now + seconds, timezone.utc)

    def entry(row: Any) -> Any:
        if not isinstance(row, dict):
            return row
        return {key: moment(row[key]) if key in ("from", "until") else row[key] for key in row}

    if not isinstance(policy, dict):
        return policy
    return {
        key: [entry(row) for row in part]
        if key in ("grants", "windows") and isinstance(part, list)
        else part
        for key, part in policy.items()
    }


def _on_cards_that_cannot_be(file: CaseFile, policy: Policy) -> Iterator[Problem]:
    """Cards that a node does not have, or that leases use more of than there is."""
    used: Counter[tuple[str, str, int]] = Counter()
    for index, row in enumerate(file.running):
        pool = policy.pools.get(row.pool)
        if pool is None:
            continue
        for node, cards in row.cards.items():
            size = pool.capacity if pool.nodes is None else pool.nodes.get(node, 0)
            where = f"{node} of {row.pool}".removeprefix(f"{UNNAMED} of ")
            path = dotted("running", index, "cards")
            for card, gpus in cards:
                used[row.pool, node, card] += gpus
                if card * ONE_GPU >= size:
                    count = size // ONE_GPU
                    yield Problem(
                        path, f"{where} has {count} cards, numbered from 0, and no {card}"
                    )
                elif used[row.pool, node, card] > ONE_GPU:
                    in_use = format_gpus(used[row.pool, node, card])
                    yield Problem(path, f"with it {in_use} of card {card} of {where} is in use")


def _misnamed(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Ids that are there twice, and ids in what is expected that nothing has."""
    running, queued = (_ids(data.get(key)) for key in ("running", "queued"))
    seen: dict[str, str] = {}
    for section, ids in (("running", running), ("queued", queued)):
        for index, id_ in ids.items():
            path = dotted(section, index)
            if seen.setdefault(id_, path) != path:
                message = f"{shown(id_)} is the id of {seen[id_]} already; give it another"
                yield Problem(f"{path}.id", message)
    expect = _keys(data.get("expect"))
    named = [("request", dotted("blocked", id_), id_, queued) for id_ in _keys(data.get("blocked"))]
    # What has started by the second pass may be stopped in it.
    both = dict(enumerate((*running.values(), *queued.values())))
    for under, part, leases in (
        ("expect", expect, running),
        ("expect.again", _keys(expect.get("again")), both),
    ):
        named += [("request", path, id_, queued) for path, id_ in _requests_named(under, part)]
        named += [("lease", path, id_, leases) for path, id_ in _leases_named(under, part)]
    for what, path, id_, known in named:
        if id_ not in known.values():
            yield Problem(path, unknown(what, id_, known.values()))


def _ids(rows: Any) -> dict[int, str]:
    """The ids in ``running`` or ``queued``, by their place in the list."""
    return {
        index: row["id"]
        for index, row in enumerate(rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and isinstance(row.get("id"), str)
    }


def _requests_named(under: str, expect: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where a request is named by its id."""
    start = expect.get("start")
    for index, id_ in enumerate(start if isinstance(start, list) else ()):
        yield dotted(under, "start", index), str(id_)
    for section in ("preempt", "wait"):
        yield from ((dotted(under, section, id_), id_) for id_ in _keys(expect.get(section)))


def _leases_named(under: str, expect: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where a lease is named by its id."""
    for asker, ids in _keys(expect.get("preempt")).items():
        for index, id_ in enumerate(ids if isinstance(ids, list) else ()):
            yield dotted(under, "preempt", asker, index), str(id_)


def _keys(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _unlike(
    under: str, expected: Mapping[str, Any], found: Mapping[str, Any], keys: Iterable[str]
) -> Iterator[Difference]:
    for key in keys:
        if expected.get(key) != found.get(key):
            yield Difference(dotted(under, key), expected.get(key), found.get(key))


def _said(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return "nothing" if value is None else str(value)


def _nodes(nodes: Mapping[str, int]) -> dict[str, int | float]:
    return {node: gpus_number(gpus) for node, gpus in sorted(nodes.items())}


def _cards(cards: Cards) -> dict[str, list[list[int | float]]] | list[list[int | float]]:
    """As a case has them: by node, and without nodes as one row."""
    rows = {
        node: [[card, gpus_number(gpus)] for card, gpus in here]
        for node, here in sorted(cards.items())
    }
    return rows.get(UNNAMED, rows)


def _points(points: Points) -> dict[str, float]:
    return {name: round(value, _DECIMALS) for name, value in points._asdict().items()}


def _iso(at: float) -> str:
    """``2026-06-01T12:00:00.250Z``."""
    moment = datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")
