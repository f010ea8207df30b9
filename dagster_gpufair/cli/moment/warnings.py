"""What a person has to know before all else: a daemon that is gone, GPUs that nobody counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from dagster_gpufair.cli.moment.current import Daemon, Moment
from dagster_gpufair.cli.output.tables import alarm, warning
from dagster_gpufair.cli.output.text import plain, sentence
from dagster_gpufair.cli.output.times import age_in_words, clock


def warnings(moment: Moment) -> Iterator[RenderableType]:
    """In parts to print, above everything that shows the moment."""
    if moment.daemon.overdue:
        yield alarm(_silent(moment.daemon, moment.now))
    for run_id, why in moment.uncounted.items():
        yield alarm(
            f"Run {plain(run_id)} uses GPUs without a grant, and they cannot be counted: "
            f"{sentence(why)}. Other runs may be given its GPUs. Stop it, or correct its tags and "
            "launch it again."
        )
    if moment.proposals:
        count = len(moment.proposals)
        stops = "1 stop awaits" if count == 1 else f"{count} stops await"
        yield warning(f"{stops} approval: `gpufair approvals` shows for whom.")
    for what, pause in moment.paused.items():
        yield warning(f"{pause_words(what, pause, moment.now)}. `gpufair resume {what}` ends that.")
    if moment.file_trouble:
        yield warning(
            f"{sentence(str(moment.file_trouble['summary']))}. Policy v{moment.version.version} stays in "
            "force. `gpufair policy show` says what is wrong."
        )


def pause_words(what: str, pause: Mapping[str, Any], now: float) -> str:
    """``Preemption is paused since 12:40 CET by ann: maintenance``."""
    because = f": {sentence(str(pause.get('reason')))}" if pause.get("reason") else ""
    since = clock(float(pause["at"]), now)
    return f"{what.capitalize()} is paused since {since} by {plain(str(pause['by']))}{because}"


def _silent(daemon: Daemon, now: float) -> str:
    if daemon.last_pass is None:
        said = "No queue daemon has run on this instance yet"
    else:
        where = f" on {plain(daemon.host)}" if daemon.host else ""
        said = (
            f"The queue daemon{where} does not run: its last pass was "
            f"{age_in_words(now - daemon.last_pass)} ago, at {clock(daemon.last_pass, now, seconds=True)}"
        )
    todo = daemon.trouble or "Start `dagster dev` or `dagster-daemon run`."
    return f"{said}. No run starts until it does. {sentence(todo)}"
