"""How the policy file and tags write amounts: GPUs (``8``, ``0.5``), durations (``30m``), moments.

Inside the product a GPU amount is an ``int`` in thousandths of a GPU, so that sums are exact, a
duration is a ``timedelta`` and a moment a ``datetime`` with its zone. All keep their written form
when a policy is dumped.
"""

from __future__ import annotations

import math
import re
from datetime import date, datetime, timedelta, timezone
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from dagster_gpufair.policy.problems import shown

ONE_GPU = 1000
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_WORDS = {"s": "s", "m": "min", "h": "h", "d": "days"}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_WRITTEN_DURATION = r"^([0-9]+(\.[0-9]+)?[smhdwSMHDW])+$|^0$"
_LARGEST_GPUS = 1_000_000
_LONGEST = timedelta(days=3650)
_DURATIONS = "write 30s, 45m, 6h or 2d"
_MOMENTS = "write date, time and zone: 2026-06-01T12:00:00Z"


def parse_gpus(value: Any) -> int:
    """GPUs as written (``8``, ``0.5``, ``"4"``) in thousandths; 0 is allowed here.

    Raises:
        ValueError: for anything but a number from 0 to a million with at most three decimals.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{shown(value)} is not a number of GPUs")
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        raise ValueError(f"{shown(value)} is not a number of GPUs")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0 or number > _LARGEST_GPUS:
        raise ValueError(f"{shown(value)} is not a number of GPUs from 0 to {_LARGEST_GPUS}")
    thousandths = round(number * ONE_GPU)
    if abs(thousandths - number * ONE_GPU) > 1e-6:
        raise ValueError(f"{shown(value)}: a GPU is divided into thousandths at most")
    return thousandths


def format_gpus(thousandths: int) -> str:
    """``8000`` → ``8``, ``500`` → ``0.5``."""
    return f"{thousandths / ONE_GPU:.3f}".rstrip("0").rstrip(".")


def gpus_number(thousandths: int) -> int | float:
    """The number a person would write for it: ``8000`` → ``8``, ``500`` → ``0.5``."""
    whole, part = divmod(thousandths, ONE_GPU)
    return thousandths / ONE_GPU if part else whole


def parse_duration(value: Any) -> timedelta:
    """A duration as written: ``90s``, ``30m``, ``1h30m``, ``7d``, ``2w``; 0 needs no unit.

    Raises:
        ValueError: for anything else, and for more than ten years.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{shown(value)} is not a duration; {_DURATIONS}")
    try:
        text = str(value).strip().lower()
    except ValueError:  # Python refuses to print integers of thousands of digits.
        text = ""
    if _NUMBER.fullmatch(text):
        if float(text):
            raise ValueError(f"{shown(value)} has no unit; {_DURATIONS}")
        return timedelta(0)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{shown(value)} is not a duration; {_DURATIONS}")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds > _LONGEST.total_seconds():
        raise ValueError(f"{shown(value)} is longer than ten years")
    return timedelta(seconds=seconds)


def format_duration(value: timedelta | float) -> str:
    """``5400`` seconds → ``1h30m``; the two largest units, so that it reads at a glance."""
    seconds = round(value.total_seconds() if isinstance(value, timedelta) else value)
    if seconds < 1:
        return "0s"
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def duration_in_words(value: timedelta | float) -> str:
    """``5 min``, ``1 h 30 min``, ``7 days``: the same for a sentence."""
    text = re.sub(r"[dhms]", lambda unit: f" {_WORDS[unit[0]]} ", format_duration(value)).strip()
    return re.sub(r"^1 days", "1 day", text)


def written_duration(value: timedelta) -> str:
    """As a tag or a policy says it: exact, where `format_duration` rounds."""
    seconds = value.total_seconds()
    for unit in ("d", "h", "m"):
        if seconds and seconds % _UNITS[unit] == 0:
            return f"{int(seconds // _UNITS[unit])}{unit}"
    return f"{seconds:f}".rstrip("0").rstrip(".") + "s"


def parse_moment(value: Any) -> datetime:
    """A moment as written, with its zone: ``2026-06-01T12:00:00Z``, ``2026-06-01 14:00+02:00``.

    Raises:
        ValueError: for anything else, and for a date or a time without a zone.
    """
    moment = value
    if isinstance(value, str):
        # Python 3.10 does not read the Z.
        text = re.sub(r"[zZ]$", "+00:00", value.strip())
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{shown(value)} is not a moment; {_MOMENTS}") from None
    if isinstance(moment, date) and getattr(moment, "tzinfo", None) is None:
        raise ValueError(f"{shown(value)} has no time zone; {_MOMENTS}")
    if not isinstance(moment, datetime):
        raise ValueError(f"{shown(value)} is not a moment; {_MOMENTS}")
    try:
        moment.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{shown(value)} is out of range") from None
    return moment


def format_moment(value: datetime | float) -> str:
    """``2026-06-01 12:00 UTC``, of a moment or of seconds since the epoch; seconds only if any."""
    moment = value if isinstance(value, datetime) else datetime.fromtimestamp(value, timezone.utc)
    moment = moment.astimezone(timezone.utc).replace(tzinfo=None)
    return f"{moment.isoformat(' ', 'seconds' if moment.second else 'minutes')} UTC"


Gpus = Annotated[
    int,
    BeforeValidator(parse_gpus),
    PlainSerializer(gpus_number, return_type=float),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": _LARGEST_GPUS}),
]
"""A GPU amount in thousandths, written as a number of GPUs."""

Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(written_duration, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": _WRITTEN_DURATION, "examples": ["30m", "7d"]},
                {"const": 0},
            ]
        }
    ),
]
"""A duration, written as ``90s``, ``30m``, ``1h30m``, ``7d``; 0 needs no unit."""

Moment = Annotated[datetime, BeforeValidator(parse_moment)]
"""A point in time with its zone."""
