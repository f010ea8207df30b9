"""``gpufair keep``: a run whose owner says that it is not to be stopped for others, for a time."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import click

from dagster_gpufair.cli.explain.find_run import find_request, no_such_run, run_argument
from dagster_gpufair.cli.instance.opening import opened_ledger
from dagster_gpufair.cli.instance.option import instance_option
from dagster_gpufair.cli.instance.person import person
from dagster_gpufair.cli.moment.current import read_moment
from dagster_gpufair.cli.output.json_output import iso, json_option, show_json
from dagster_gpufair.cli.output.tables import show
from dagster_gpufair.cli.output.text import plain
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.ledger import leases, lifecycle
from dagster_gpufair.policy.quantities import duration_in_words, parse_duration

_TIMES = "write a time from now (2h, 45m), or date, time and zone (2026-06-01T18:00:00+02:00)"


@click.command()
@run_argument
@click.option("--until", metavar="TIME", help="Until when: 2h, or 2026-06-01T18:00:00+02:00.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for all who ask.")
@click.option("--end", is_flag=True, help="Do not keep it any longer.")
@instance_option
@json_option
def keep(
    run_id: str, until: str | None, reason: str, end: bool, home: Path | None, as_json: bool
) -> None:
    """Keep a run that holds GPUs from being stopped for others until a time.

    For as long as the policy allows at most (`preemption.keep_at_most`). A run that is under notice already
    cannot be kept.
    """
    now = time.time()
    if end == (until is not None):
        raise click.UsageError("Give one of --until TIME, with --reason TEXT, and --end.")
    if not end and not reason.strip():
        raise click.UsageError("--until needs --reason TEXT: others will ask why it is kept.")
    with opened_ledger(home) as opened:
        with opened.ledger.reading() as session:
            record = find_request(session, run_id, now)
            if record is None:
                raise no_such_run(opened, run_id)
            rules = read_moment(opened, session, now).policy.preemption
            held = [one for one in leases.of_requests(session, [record.id]) if not one.released_at]
        name = plain(record.run_id[:8])
        if not held:
            raise click.ClickException(f"Run {name} holds no GPUs, so there is nothing to keep.")
        (lease,) = held
        if lease.notice_until is not None:
            raise click.ClickException(
                f"Run {name} is under notice until {clock(lease.notice_until, now, seconds=True)}, so it "
                "cannot be kept. `gpufair pause preemption` takes all notices back."
            )
        at = None if until is None else _time(until, now)
        most = rules.keep_at_most.total_seconds()
        if at is not None and at > now + most:
            raise click.ClickException(
                f"A run may be kept for {duration_in_words(most)} from now at most, until "
                f"{clock(now + most, now)} (preemption.keep_at_most in the policy)."
                if most
                else "No run may be kept: preemption.keep_at_most in the policy is 0."
            )
        with opened.ledger.writing() as session:
            lifecycle.keep(session, lease.id, at, person(), reason.strip(), now)
    if as_json:
        show_json({"run": record.run_id, "kept_until": iso(at)})
    elif at is None:
        show(f"Run {name} is not kept any longer.")
    else:
        show(
            f"Run {name} is not stopped for others before {clock(at, now)}.",
            f"`gpufair keep {name} --end` ends that.",
        )


def _time(text: str, now: float) -> float:
    """Seconds since the epoch."""
    try:
        return now + parse_duration(text.removeprefix("+")).total_seconds()
    except ValueError:
        pass
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise click.UsageError(f"--until {text} is not a time; {_TIMES}") from None
    if when.tzinfo is None:
        raise click.UsageError(f"--until {text} has no zone; {_TIMES}")
    if when.timestamp() <= now:
        raise click.UsageError(f"--until {text} is over already.")
    return when.timestamp()
