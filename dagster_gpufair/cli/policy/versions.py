"""``gpufair policy history``: all policies that were ever in force."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from dagster_gpufair.cli.instance.opening import no_policy, opened_ledger
from dagster_gpufair.cli.instance.option import instance_option
from dagster_gpufair.cli.output.json_output import iso, json_option, show_json
from dagster_gpufair.cli.output.tables import Column, show, table
from dagster_gpufair.cli.output.text import plain, sentence
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.ledger import policies
from dagster_gpufair.ledger.policies import PolicyVersion


@click.command()
@instance_option
@json_option
def history(home: Path | None, as_json: bool) -> None:
    """All policies that were ever in force, the newest first."""
    with opened_ledger(home) as opened, opened.ledger.reading() as session:
        versions = policies.history(session)[::-1]
        if not versions:
            raise no_policy(opened.instance)
    if as_json:
        show_json({"versions": [version_json(version) for version in versions]})
        return
    now = time.time()
    columns = [Column("policy"), Column("since"), Column("adopted by"), Column("from", wraps=True)]
    rows = [
        (
            f"v{version.version}",
            clock(version.adopted_at, now),
            plain(version.adopted_by),
            sentence(version.source),
        )
        for version in versions
    ]
    show(
        table(columns, rows),
        "",
        f"v{versions[0].version} is in force; `gpufair policy show` says what it means.",
    )


def version_json(version: PolicyVersion) -> dict[str, Any]:
    return {
        "version": version.version,
        "since": iso(version.adopted_at),
        "by": version.adopted_by,
        "source": version.source,
        "digest": version.digest,
    }
