"""What there is to say of a run that waits: why, behind whom, until about when, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.console import RenderableType

from dagster_gpufair.cli.explain.blockers import blockers_json, in_the_way, requests_in_the_way
from dagster_gpufair.cli.explain.comparison import comparison_json, side_by_side
from dagster_gpufair.cli.explain.gpu_holders import holders_in, holders_json, who_holds
from dagster_gpufair.cli.explain.next_steps import next_step
from dagster_gpufair.cli.explain.remedies import fits_at, remedies_of, remedy_json, would_start_with
from dagster_gpufair.cli.moment.current import Moment, Waiter
from dagster_gpufair.cli.moment.expected_start import UNKNOWN
from dagster_gpufair.cli.moment.request_words import account, asked
from dagster_gpufair.cli.moment.reservations import reservation_json, reserved
from dagster_gpufair.cli.moment.waiting_json import points_json, waiter_json
from dagster_gpufair.cli.output.json_output import gpus
from dagster_gpufair.cli.output.tables import Column, table
from dagster_gpufair.cli.output.text import counted, number, plain, whole_sentence
from dagster_gpufair.cli.output.times import age_in_words, clock
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.scheduling.explaining.comparison import Comparison, explain
from dagster_gpufair.scheduling.explaining.remedies import Remedy
from dagster_gpufair.scheduling.model import Reservation

ROWS = 8
"""Of those ahead."""


class _Story:
    """All that is said of one run that waits, in parts to print and as data."""

    def __init__(self, moment: Moment, waiter: Waiter) -> None:
        self._moment = moment
        self._waiter = waiter
        line = moment.lines[waiter.pool]
        self._ahead = line[: line.index(waiter)]
        self._waits = waiter.place is not None
        self._holding = holders_in(moment, waiter.pool)
        self._compared = self._comparison() if self._waits else None
        self._remedies: Sequence[Remedy] | None = (
            remedies_of(moment, waiter.request) if self._waits else ()
        )
        known = tuple(pool for pool in waiter.request.pools if pool in moment.policy.pools)
        self._again = replace(waiter.request, pools=known)
        """As it can be launched again: a pool that is no more would be refused."""

    def parts(self) -> Iterator[RenderableType]:
        """Why, until when, behind which runs, and what helps."""
        moment, waiter = self._moment, self._waiter
        yield _waits(moment, waiter)
        yield _why(moment, waiter)
        if self._waits:
            yield self._expected()
            its = self._reservation()
            if its is not None:
                yield f"Reserved for it: {reserved(its, moment.now)}."
            yield from _after_a_gap(in_the_way(moment, waiter))
            yield from _after_a_gap(self._comparison_parts())
            yield from _after_a_gap(self._those_ahead())
            yield from _after_a_gap(who_holds(moment, waiter))
            if waiter.request.id not in moment.state.blocked:
                yield from _after_a_gap(would_start_with(self._again, self._remedies))
        yield ""
        yield next_step(
            moment.policy,
            waiter.request,
            waiter.pool,
            waiter.reason,
            now=moment.now,
            remedies=self._remedies,
        )

    def data(self, record: RequestRecord) -> dict[str, Any]:
        """All of it, for programs."""
        moment, waiter, its = self._moment, self._waiter, self._reservation()
        return {
            "waiting": waiter_json(moment, waiter, record),
            "blockers": blockers_json(moment, waiter),
            "reservation": None if its is None else reservation_json(its, moment.runs),
            "ahead": [
                {
                    "run": moment.run_of(one.request.id),
                    "team": one.request.team,
                    "project": one.request.project,
                    "tier": one.request.tier,
                    "gpus": gpus(one.request.gpus),
                    "place": one.place,
                    "class": one.class_.label,
                    "points": points_json(one.points),
                }
                for one in self._ahead
            ],
            "compared": comparison_json(self._compared) if self._compared else None,
            "holding": holders_json(moment, self._holding),
            "remedies": None
            if self._remedies is None
            else [remedy_json(self._again, remedy) for remedy in self._remedies],
        }

    def _comparison(self) -> Comparison | None:
        """With a run that GPUs are reserved for, else with the first in line that nothing blocks."""
        moment, waiter = self._moment, self._waiter
        blocked = moment.state.blocked
        others = requests_in_the_way(moment, waiter)
        ahead = (one.request for one in self._ahead if one.place is not None)
        first = next((other for other in ahead if other.id not in blocked), None)
        for other in [*others, *([first] if first is not None else [])]:
            compared = explain(
                moment.policy, moment.settled, moment.now, waiter.pool, other, waiter.request
            )
            if compared.comes_first == other.id:
                return compared
        return None

    def _comparison_parts(self) -> Iterator[RenderableType]:
        if self._compared is not None:
            names = self._moment.names
            title = f"why {names[self._compared.first.id]} comes first"
            yield from side_by_side(self._compared, title, names, self._moment.now)

    def _reservation(self) -> Reservation | None:
        everywhere = self._moment.plan.reservations
        return next((one for one in everywhere if one.request.id == self._waiter.request.id), None)

    def _expected(self) -> str:
        moment, waiter = self._moment, self._waiter
        expected = moment.expected(waiter.request.id)
        if expected != UNKNOWN:
            return expected.sentence(moment.now)
        if waiter.request.id in moment.state.blocked:
            return "When it starts is not known: it depends on that."
        unbounded = sum(lease.max_duration is None for lease in self._holding)
        pool = plain(waiter.pool)
        why = (
            f": {unbounded} of {counted(len(self._holding), 'run')} on {pool} "
            f"{'has' if unbounded == 1 else 'have'} no gpufair/max_duration."
            if unbounded
            else " yet."
        )
        fits = fits_at(self._remedies) if waiter.reason != "ceiling" else None
        fits_by = (
            f" It fits by {clock(fits, moment.now)} at the latest, if no run ahead of it takes the GPUs "
            "that are released until then."
            if fits is not None and self._ahead
            else ""
        )
        return f"When it starts is not known{why}{fits_by}"

    def _those_ahead(self) -> Iterator[RenderableType]:
        moment, waiter = self._moment, self._waiter
        pool = plain(waiter.pool)
        score = f"{number(waiter.points.score)} points as {waiter.class_.words}"
        if not self._ahead:
            yield f"No run is ahead of it in {pool}; it has {score}."
            return
        yield f"Ahead of it in {pool} (it has {score}):"
        columns = [
            Column("  #", right=True),
            Column("run"),
            Column("team"),
            Column("tier", drop=2),
            Column("asks", right=True),
            Column("class", drop=1),
            Column("points", right=True),
            Column("starts"),
        ]
        rows = [
            (
                str(one.place or "-"),
                moment.names[one.request.id],
                account(one.request),
                plain(one.request.tier),
                asked(one.request),
                one.class_.words,
                number(one.points.score),
                moment.expected(one.request.id).words(moment.now),
            )
            for one in self._ahead[:ROWS]
        ]
        yield table(columns, rows)
        if len(self._ahead) > ROWS:
            yield f"  and {len(self._ahead) - ROWS} more; `gpufair queue --all` shows them"


def story_of_waiting(
    moment: Moment, record: RequestRecord
) -> tuple[list[RenderableType], dict[str, Any]]:
    """In parts to print, and as data."""
    waiter = moment.waiter(record.id)
    assert waiter is not None, "what is queued is in the plan of the same moment"
    story = _Story(moment, waiter)
    return list(story.parts()), story.data(record)


def _after_a_gap(parts: Iterator[RenderableType]) -> Iterator[RenderableType]:
    """The parts with an empty line before them, if there are any."""
    for at, part in enumerate(parts):
        if at == 0:
            yield ""
        yield part


def _waits(moment: Moment, waiter: Waiter) -> str:
    request = waiter.request
    waited = age_in_words(moment.now - request.submitted)
    since = f"since {clock(request.submitted, moment.now)} ({waited})"
    what = f"It waits for {asked(request)} {plain(waiter.pool)} {since}"
    if waiter.place is None:
        return f"{what}, and starts on the daemon's next pass."
    return f"{what}: {waiter.reason}, place {waiter.place} in {plain(waiter.pool)}."


def _why(moment: Moment, waiter: Waiter) -> str:
    if waiter.place is None:
        return f"It starts as {waiter.class_.words}, with {number(waiter.points.score)} points."
    if waiter.request.id in moment.state.blocked:
        return whole_sentence(waiter.message)
    return whole_sentence(f"It {waiter.message}")
