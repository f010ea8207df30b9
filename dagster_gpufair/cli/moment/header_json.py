"""What all JSON that shows the moment begins with: when, by which policy, and whether the daemon runs."""

from __future__ import annotations

from typing import Any

from dagster_gpufair.cli.moment.current import Moment
from dagster_gpufair.cli.output.json_output import iso


def header_json(moment: Moment) -> dict[str, Any]:
    """``at``, ``policy`` and ``daemon``."""
    return {
        "at": iso(moment.now),
        "policy": {
            "version": moment.version.version,
            "since": iso(moment.version.adopted_at),
            "file_trouble": moment.file_trouble and moment.file_trouble["summary"],
        },
        "daemon": {
            "last_pass": iso(moment.daemon.last_pass),
            "host": moment.daemon.host,
            "overdue": moment.daemon.overdue,
            "trouble": moment.daemon.trouble,
        },
    }
