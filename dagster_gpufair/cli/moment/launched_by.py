"""What launched a run: a backfill, a schedule, a sensor, a person, or nobody that its tags name."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_gpufair.cli.output.text import plain

if TYPE_CHECKING:
    from dagster_gpufair.ledger.requests import RequestRecord


@dataclass(frozen=True)
class Launcher:
    """``what`` is ``backfill``, ``schedule``, ``sensor``, ``user`` or ``job``, and ``name`` its own.

    ``user`` is who launched it, also of a backfill.
    """

    what: str
    name: str
    user: str | None = None

    def words(self) -> str:
        """``backfill qwertzui``, ``ana``, ``job``: the job's name stands beside."""
        if self.what == "job":
            return "job"
        return plain(self.name if self.what == "user" else f"{self.what} {self.name}")

    def as_json(self) -> dict[str, Any]:
        """Under the names of the fields."""
        return {"what": self.what, "name": self.name, "user": self.user}


def launched_by(record: RequestRecord) -> Launcher:
    """As the ledger has it; of runs from before it knew, the job."""
    said = record.launched_by
    if said is None:
        return Launcher("job", record.job_name)
    return Launcher(said["what"], said["name"], said.get("user"))


def this_user() -> str | None:
    """Who types this: ``GPUFAIR_USER``, else the user of this machine; None if there is no name."""
    named = os.environ.get("GPUFAIR_USER")
    if named:
        return named
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return None
