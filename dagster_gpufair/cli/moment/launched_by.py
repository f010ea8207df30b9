"""What launched a run: a backfill, a person, or the job by itself, as the ledger has its source.

A team's runs are told apart by the id of their backfill, else by their tag ``user``, else by the job:
which is what a schedule or a sensor leaves, and a launch by somebody without that tag.
"""

from __future__ import annotations

import getpass
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_gpufair.cli.output.text import plain

if TYPE_CHECKING:
    from dagster_gpufair.ledger.requests import RequestRecord

_BACKFILL = re.compile(r"[a-z]{8}")
"""How Dagster names its backfills; a user of exactly eight lower-case letters looks alike."""


@dataclass(frozen=True)
class Launcher:
    """``what`` is ``backfill``, ``user`` or ``job``; ``name`` its id, the user, or the job."""

    what: str
    name: str

    def words(self) -> str:
        """``backfill qwertzui``, ``ana``, ``job``: the job's name stands beside."""
        if self.what == "job":
            return "job"
        return plain(f"backfill {self.name}" if self.what == "backfill" else self.name)

    def as_json(self) -> dict[str, Any]:
        """Under the names of the fields."""
        return {"what": self.what, "name": self.name}


def launched_by(record: RequestRecord) -> Launcher:
    """What the source of a request was."""
    source = record.source
    if not source or source == record.job_name:
        return Launcher("job", record.job_name)
    return Launcher("backfill" if _BACKFILL.fullmatch(source) else "user", source)


def this_user() -> str | None:
    """Who types this: ``GPUFAIR_USER``, else the user of this machine; None if there is no name."""
    named = os.environ.get("GPUFAIR_USER")
    if named:
        return named
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return None
