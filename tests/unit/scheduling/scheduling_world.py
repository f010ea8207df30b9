"""A world that lives through passes: what is planned happens, time goes on, and work ends or comes back.

A `Story` is where a world begins and what happens in it. Whatever is given notice stops when its grace
is over at the latest, and comes back as a request; other leases end at their bounds, if they have any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

from scheduling_checks import Pass

from dagster_gpufair.policy.in_force import upcoming
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.scheduling.model import Lease, Plan, Request, State
from dagster_gpufair.scheduling.plan import plan

NOW = 1_000_000.0


class World:
    """A state that plans are carried out on, at a time that goes on."""

    def __init__(self, policy: Policy, state: State, now: float = NOW) -> None:
        self.policy = policy
        self.state = state
        self.now = now
        self.passes: list[Pass] = []
        self._asked = {request.id: request for request in state.requests}

    def decide(self) -> Pass:
        """One pass; all of it is carried out but for what awaits approval."""
        decided = plan(self.policy, self.state, self.now)
        after = self.state.following(decided, self.now, self.policy.grace)
        self.passes.append(Pass(self.policy, self.state, self.now, decided, after))
        self.state = after
        return self.passes[-1]

    def wait(self, seconds: float) -> None:
        """Time goes on: leases end, and what was stopped comes back."""
        self.now += seconds
        for lease in self.state.leases:
            if lease.ends is not None and lease.ends <= self.now:
                self._end(lease, lease.ends)

    def wait_for_something(self) -> bool:
        """Until the next moment at which a pass may decide anything new; False if there is none."""
        over = any(lease.ends is not None and lease.ends <= self.now for lease in self.state.leases)
        moments = [at for at in self._moments() if at > self.now]
        if not over and not moments:
            return False
        self.wait(0 if over else min(moments) - self.now)
        return True

    def arrive(self, request: Request) -> None:
        if request.id not in self._asked:
            self._asked[request.id] = replace(request, submitted=self.now)
            self._change(requests=[*self.state.requests, self._asked[request.id]])

    def cancel(self, number: int) -> None:
        """One of the requests is taken back."""
        if self.state.requests:
            gone = self.state.requests[number % len(self.state.requests)]
            self._change(requests=[each for each in self.state.requests if each is not gone])

    def end(self, number: int) -> None:
        """One of the leases ends early."""
        if self.state.leases:
            self._end(self.state.leases[number % len(self.state.leases)], self.now)

    def cordon(self, pool: str, node: str) -> None:
        self._change(cordoned={**self.state.cordoned, pool: self._away(pool) | {node}})

    def uncordon(self, pool: str, node: str) -> None:
        self._change(cordoned={**self.state.cordoned, pool: self._away(pool) - {node}})

    def approve(self, number: int) -> None:
        """A person agrees to one of the preemptions that the last pass proposed."""
        proposed = [
            each
            for each in (self.passes[-1].plan.preemptions if self.passes else ())
            if each.awaits_approval
        ]
        if proposed:
            agreed = replace(proposed[number % len(proposed)], awaits_approval=False)
            agreed_on = Plan(starts=(), waiting=(), preemptions=(agreed,))
            self.state = self.state.following(agreed_on, self.now, self.policy.grace)

    def rule(self, policy: Policy) -> None:
        """Another policy takes effect."""
        self.policy = policy

    def _away(self, pool: str) -> frozenset[str]:
        return self.state.cordoned.get(pool, frozenset())

    def _change(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def _end(self, lease: Lease, at: float) -> None:
        self._change(leases=[each for each in self.state.leases if each.id != lease.id])
        if lease.notice_until is not None:
            self._change(requests=[*self.state.requests, self._back(lease, at)])

    def _back(self, lease: Lease, at: float) -> Request:
        """What was stopped asks again for what it asked for."""
        asked = self._asked.get(lease.id)
        if asked is None:
            asked = Request(
                id=lease.id,
                team=lease.team,
                tier=lease.tier,
                pools=(lease.pool,),
                gpus=lease.gpus,
                submitted=at,
                project=lease.project,
                max_duration=lease.max_duration,
                source=lease.source,
                cpus=lease.cpus,
                memory_gib=lease.memory_gib,
            )
        return replace(asked, submitted=at, preempted=lease.preempted + 1, promised=None)

    def _moments(self) -> Iterator[float]:
        """When something is over, or long enough under way, or promised to start."""
        rules = self.policy
        for lease in self.state.leases:
            if lease.ends is not None:
                yield lease.ends
            yield lease.started + rules.stop_rules(lease.pool).min_runtime.total_seconds()
            term = rules.borrowing_rules(lease.team, lease.pool).max_duration
            if term is not None:
                since = lease.started if lease.term_from is None else lease.term_from
                yield since + term.total_seconds()
        for request in self.state.requests:
            yield request.submitted + rules.backfill.reserve_after.total_seconds()
        if self.passes:
            last = self.passes[-1]
            for reservation in last.plan.reservations:
                if reservation.at is not None and not reservation.of_quota:
                    yield max(reservation.at, last.now + 1)
                elif reservation.at is not None:
                    yield reservation.at
        for window in upcoming(rules, self.now):
            yield window.start
        for given in [*rules.windows, *rules.grants]:
            for moment in (given.start, given.until):
                if moment is not None:
                    yield moment.timestamp()


class Move(NamedTuple):
    """Something that happens in a world, by the name of its method."""

    what: str
    with_: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"{self.what}({', '.join(map(brief, self.with_))})"


@dataclass(frozen=True, repr=False)
class Story:
    """Where a world begins, and what happens in it, one thing before each pass."""

    policy: Policy
    state: State
    moves: tuple[Move, ...] = ()

    def world(self) -> World:
        return World(self.policy, self.state)

    def passes(self) -> Iterator[Pass]:
        """The first pass, and one after each move."""
        world = self.world()
        yield world.decide()
        for move in self.moves:
            getattr(world, move.what)(*move.with_)
            yield world.decide()

    def __repr__(self) -> str:
        moves = "".join(f"\n    {move!r}," for move in self.moves)
        return f"Story(\n  {brief(self.policy)},\n  {brief(self.state)},\n  [{moves}])"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How hypothesis shows it."""
        printer.text(repr(self))


def brief(value: Any) -> str:
    """A value as a person would write it: without what is as by default, times as offsets from `NOW`."""
    if isinstance(value, Policy):
        written = value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        usual = Policy(pools={}, teams={}).model_dump(mode="json", exclude_defaults=True)["tiers"]
        tiers = written.pop("tiers", {})
        changed = {name: row for name, row in tiers.items() if row != usual.get(name)}
        return f"policy({written | {'tiers': changed}})"
    if is_dataclass(value) and not isinstance(value, type):
        parts = [
            f"{each.name}={brief(getattr(value, each.name))}"
            for each in fields(value)
            if getattr(value, each.name) != _default(each)
        ]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{brief(key)}: {brief(its)}' for key, its in value.items())}}}"
    if isinstance(value, list):
        return f"[{''.join(f'{brief(each)}, ' for each in value)}]"
    if isinstance(value, float) and abs(value - NOW) < NOW / 2:
        return f"NOW{value - NOW:+g}" if value != NOW else "NOW"
    return repr(value)


def _default(of: Any) -> Any:
    return (
        of.default
        if of.default is not MISSING
        else (of.default_factory() if of.default_factory is not MISSING else MISSING)
    )


def told(passes: list[Pass], most: int = 12) -> str:
    """What happened in the last passes, a line each, to go with a failure."""
    return "\n".join(_told(done) for done in passes[-most:])


def _told(done: Pass) -> str:
    plan = done.plan
    said = [
        f"{start.request.id} starts on {start.gpus} of {start.pool} {dict(start.nodes)}"
        for start in plan.starts
    ]
    said += [
        f"{each.request.id} gets {brief(each.promise)} from "
        f"{', '.join(f'{victim.lease.id} ({victim.rule})' for victim in each.victims)}"
        for each in plan.preemptions
    ]
    said += [
        f"{each.request.id} reserves {each.gpus} of {each.pool} {dict(each.nodes)} at "
        f"{'some time' if each.at is None else brief(each.at)}{' (quota)' * each.of_quota}"
        for each in plan.reservations
    ]
    said += [f"withdrawn {id}" for id in plan.withdrawn] + [f"renewed {id}" for id in plan.renewed]
    said += [f"{id} waits for {reason}" for id, reason in plan.reasons().items()]
    return f"{brief(done.now)}: {'; '.join(said)}"
