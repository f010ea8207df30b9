"""Code locations that cannot be reached: their runs wait for ``environment``, with growing pauses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dagster_gpufair.policy.problems import shown

FIRST_PAUSE = 10.0
LONGEST_PAUSE = 900.0
"""Seconds; each failure in a row doubles the pause."""


def first_line(error: object) -> str:
    """The beginning of what an error says, to put in a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


@dataclass
class _Pause:
    until: float
    length: float
    error: str


class Environment:
    """What is known to be broken outside the decision, by code location."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}

    def failed(self, location: str, error: str, now: float, first_pause: float) -> float:
        """A launch could not reach the location; returns the length of the pause that follows."""
        before = self._pauses.get(location)
        if before is not None and 0 < before.until - now <= before.length:
            return before.length  # several launches failed in the same moment: one failure
        length = min(before.length * 2 if before else first_pause, LONGEST_PAUSE)
        self._pauses[location] = _Pause(now + length, length, error)
        return length

    def reached(self, location: str) -> None:
        """A launch went through: what was broken is mended."""
        self._pauses.pop(location, None)

    def broken(
        self,
        now: float,
        load_errors: Mapping[str, str],
        hanging: Mapping[str, int],
        clock: Callable[[float], str],
    ) -> dict[str, str]:
        """Why each location takes no launch now, in a sentence."""
        why = {
            name: f"Code location {shown(name)} cannot be loaded ({first_line(error)}). It starts once "
            "that is mended."
            for name, error in load_errors.items()
        }
        for name, count in hanging.items():
            why[name] = (
                f"{count} launches into code location {shown(name)} hang; no more are tried until one "
                "returns."
            )
        for name, pause in self._pauses.items():
            # A pause that is longer than it was is one of a clock that was set back.
            if 0 < pause.until - now <= pause.length:
                why[name] = (
                    f"Code location {shown(name)} could not be reached ({pause.error}). "
                    f"Tried again at {clock(pause.until)}."
                )
        return why
