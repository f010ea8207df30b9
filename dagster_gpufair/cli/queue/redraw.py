"""The queue as it changes: redrawn in a terminal, printed once for each change elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from rich.console import Group
from rich.live import Live

from dagster_gpufair.cli.output.tables import new_console, show
from dagster_gpufair.cli.queue.sections import ROWS, Shown

_AROUND = 8
"""Lines that are no pool's rows: warnings, and what stands at the end."""
_A_POOL = 4
"""Lines of a pool besides its rows: headline, titles, one that is reserved, and the gap."""


def keep_showing(
    look: Callable[[], Shown], wait: Callable[[], None], everything: bool, with_running: bool
) -> None:
    """Look, show and wait until Ctrl-C."""
    console = new_console()
    with suppress(KeyboardInterrupt):
        if not console.is_terminal:
            _print_changes(look, wait, everything, with_running)
            return
        with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
            while True:
                shown = look()
                room = (console.height - _AROUND) // max(1, len(shown.uses)) - _A_POOL
                most = None if everything else max(2, min(ROWS, room))
                live.update(Group(*shown.parts(most, with_running)), refresh=True)
                wait()


def _print_changes(
    look: Callable[[], Shown], wait: Callable[[], None], everything: bool, with_running: bool
) -> None:
    before: object = None
    while True:
        shown = look()
        if shown.facts != before:
            before = shown.facts
            show(*shown.parts(None if everything else ROWS, with_running))
        wait()
