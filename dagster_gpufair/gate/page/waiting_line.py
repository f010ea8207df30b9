"""Why each waiting run waits, and where in line: what is news of it is told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property

from dagster_gpufair.gate.page.run_page import Cause, Word, day_and_clock, ordinal, short
from dagster_gpufair.gate.submission.tags import LONGEST_WHY, shortened
from dagster_gpufair.scheduling.explaining.places import places
from dagster_gpufair.scheduling.model import Plan

_TROUBLE = "!"
"""Mark of a reason: the policy file is broken."""


def without_marks(reason: str) -> str:
    """One of the closed list of reasons."""
    return reason.rstrip(_TROUBLE)


class WaitingLine:
    """Why each waiting run waits, and where in line; a pass says only what is new of it.

    Args:
        plan: the pass's plan.
        outside: runs that are in no line of the plan's: {run id: (line, reason, sentence)}.
        run_of: the run that a request is for now, by its id.
        trouble: what is wrong with the policy file, if anything.
        policy: the version of the policy it was decided by.
        quiet: runs of which nothing is said yet.
    """

    def __init__(
        self,
        plan: Plan,
        outside: Mapping[str, tuple[str, str, str]],
        run_of: Callable[[str], str],
        trouble: str | None,
        policy: int | None,
        quiet: Collection[str] = (),
    ) -> None:
        self.policy = policy
        self._quiet = quiet
        self._run_of = run_of
        self._plan = plan
        self._outside = outside
        self._trouble = trouble

    def reasons(self) -> Iterator[tuple[str, str, str]]:
        """(run id, reason, sentence) of all that wait, first in line first.

        What is news besides the reason itself is a mark at its end.
        """
        mark = "" if self._trouble is None else _TROUBLE
        for run_id, (_, reason, why) in self._outside.items():
            if run_id not in self._quiet:
                yield run_id, reason + mark, why
        for group in self._plan.waiting:
            reason = group.reason + mark
            for request in group.requests:
                run_id = self._run_of(request.id)
                if run_id not in self._quiet:
                    yield run_id, reason, group.message

    @cached_property
    def _places(self) -> Mapping[str, tuple[str, int]]:
        return {self._run_of(id_): place for id_, place in places(self._plan).items()}

    def word(self, run_id: str, reason: str, why: str, now: float) -> Word:
        """What the page of a waiting run should say, as of ``now``."""
        if run_id in self._outside:
            line = self._outside[run_id][0]
        else:
            pool, place = self._places[run_id]
            line = f"{ordinal(place)} in {pool}"
        cause = Cause(without_marks(reason), why, now)
        tag = f"{cause.reason} · {line}"
        said, as_of = why, f" ({day_and_clock(now)})"
        why = shortened(why, LONGEST_WHY - len(as_of)) + as_of
        sentence = f"Waiting, {line}: {said} `gpufair explain {short(run_id)}` says more."
        if self._trouble is not None:
            tag += " · policy file broken"
            sentence += f" The policy file changes nothing now: {self._trouble}."
        return Word(run_id, "waiting", reason, tag, why, sentence, cause)
