"""The files of a channel: their names, and how they are written and read.

Each run has a channel: a folder. The daemon writes into it what it says, user code what it answers. A file
is complete or absent: it is written under another name beside it, and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

SCHEMA = 1
LEASE = "lease.json"
"""Written by the daemon when the run is launched."""
NOTICE = "notice.json"
"""Written by the daemon when the run is to be stopped, removed when that is taken back."""
CHECKPOINTED = "checkpointed.json"
BUSY = "busy.json"
STOP_HERE = "stop_here.json"
"""Says that all of the run is saved; in a step it is `stop_here_file`, for that step."""

LARGEST = 64 * 1024
"""Bytes: a larger file is not one of these."""
_LONGEST_NAME = 100
_PART_OF_A_NAME = re.compile(r"[^A-Za-z0-9_.\[\]-]")


def folder_name(name: str) -> str:
    """A name for a file or folder that is the same each time, whatever the characters and the length."""
    plain = _PART_OF_A_NAME.sub("_", name)
    if plain == name and len(name) <= _LONGEST_NAME and not name.startswith("."):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{plain[:_LONGEST_NAME].lstrip('.')}-{digest}"


def stop_here_file(step: str | None) -> str:
    """The name of the file in which a step, or a whole run, says that all is saved."""
    return STOP_HERE if step is None else f"stop_here.{folder_name(step)}.json"


def is_stop_here(name: str) -> bool:
    """Whether a file of a channel says that all is saved."""
    return name.startswith("stop_here.") and name.endswith(".json")


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file as a whole: nobody ever reads half of it.

    Raises:
        OSError: if it cannot be written.
    """
    # Several processes of a run may write the same file at once.
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        beside.write_text(json.dumps(data), "utf-8")
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def read(path: Path) -> dict[str, Any] | None:
    """What a file says; None if it is absent, cannot be read, or is no JSON object."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            return parse(file.read(LARGEST + 1))
    except OSError:
        return None


def _without_waiting(path: str, flags: int) -> int:
    """A pipe of this name would make whoever opens it wait."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def parse(content: bytes) -> dict[str, Any] | None:
    """A JSON object of a reasonable size, or None."""
    if len(content) > LARGEST:
        return None
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def number(data: Mapping[str, Any], key: str) -> float | None:
    """A finite number under a key, or None."""
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # A whole number may be too large for a float; nan is equal to nothing.
    return float(value) if -1e15 < value < 1e15 else None
