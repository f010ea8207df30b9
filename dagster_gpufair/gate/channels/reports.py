"""What the files of a run's code mean, as far as they can be true.

They bear times by the clock of whatever machine the code runs on. The file system's own time of a file and
the moment at which it was first seen bound them from above: with a clock that is ahead, or code that lies,
no work counts as saved before it is done. With a clock that is behind, a checkpoint counts as older than it
is, which is the safe side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dagster_gpufair.gate.channels.words import Heard
from dagster_gpufair.preemption.files import BUSY, CHECKPOINTED, STOP_HERE, is_stop_here, number

LONGEST_BUSY = 86_400.0
"""Seconds that a run can say beforehand that it is busy; it may say so again."""
_LONGEST_REASON = 200
_LONGEST_PATH = 1000


class Signature(NamedTuple):
    """Tells a file from what stood there before."""

    mtime_ns: int
    inode: int
    size: int


class Found(NamedTuple):
    """A file that was found; ``wrong`` says why it is none.

    ``seen_at`` is when this version of it was first seen, in seconds since the epoch.
    """

    signature: Signature | None
    said: Mapping[str, Any] | None
    seen_at: float
    wrong: str = ""


def heard_of(found: Mapping[str, Found], since: float) -> tuple[Heard, tuple[str, ...]]:
    """What a run says of itself, and what is wrong with its files.

    Args:
        since: when its lease began; nothing was saved before.
    """
    wrong = [f"{name} {each.wrong}" for name, each in found.items() if each.wrong]
    good = {name: each for name, each in found.items() if not each.wrong}
    saved_at, path = None, None
    if CHECKPOINTED in good:
        saved_at = _written_at(good[CHECKPOINTED], since)
        path = _text(good[CHECKPOINTED].said, "path", _LONGEST_PATH)
    steps, whole = set(), False
    for name in filter(is_stop_here, good):
        step = _text(good[name].said, "step", _LONGEST_PATH)
        if name == STOP_HERE:
            whole = True
        elif step is not None:
            steps.add(step)
        else:
            wrong.append(f"{name} names no step")
            continue
        saved_at = max(saved_at or since, _written_at(good[name], since))
    busy_until, reason = None, None
    if BUSY in good:
        busy_until, reason = _busy(good[BUSY], since)
        if busy_until is None:
            wrong.append(f"{BUSY} does not say until when")
    may_stop = whole or bool(steps)
    said_by = frozenset() if whole else frozenset(steps)
    return Heard(saved_at, path, may_stop, said_by, busy_until, reason), tuple(wrong)


def _written_at(file: Found, since: float) -> float:
    """When a file says that it was written; never later than it was, nor before the lease."""
    assert file.signature is not None and file.said is not None
    at_latest = min(file.signature.mtime_ns / 1e9, file.seen_at)
    said = number(file.said, "at")
    return max(since, at_latest if said is None else min(said, at_latest))


def _busy(file: Found, since: float) -> tuple[float | None, str | None]:
    """Until when, by our clock: how long is the difference of two times by theirs."""
    assert file.said is not None
    until = number(file.said, "until")
    if until is None:
        return None, None
    at = _written_at(file, since)
    said_at = number(file.said, "at")
    lasts = until - (at if said_at is None else said_at)
    return at + min(max(0.0, lasts), LONGEST_BUSY), _text(file.said, "reason", _LONGEST_REASON)


def _text(said: Mapping[str, Any] | None, key: str, longest: int) -> str | None:
    """A text on one line, of characters that can be printed and stored."""
    value = (said or {}).get(key)
    if not isinstance(value, str):
        return None
    line = "".join(each if each.isprintable() else " " for each in value[: longest * 2])
    return " ".join(line.split())[:longest] or None
