"""The processes of a run, on this machine: whether they are there, which no status says.

A run may be over by its status while its processes go on, and go on by its status when they are gone.
Their ids stand in the run's event log. They mean something only where they were written: for Dagster's
default launcher and a code server on the machine, and in the container, that this daemon is in.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dagster import DagsterInstance, DagsterRun, DefaultRunLauncher

from dagster_gpufair.gate.dagster_internals import (
    GRPC_INFO_TAG,
    copies_output,
    processes_in_log,
)
from dagster_gpufair.ledger import lifecycle
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.leases import LeaseRecord

LOOK_EVERY = 5.0
"""Seconds between two looks at the processes of a run that goes on."""
FIRST_LOOKS = 30
GONE_FOR = 5.0
"""Seconds: a worker's last word may come to the database a moment after it has ended."""
READ_AGAIN = 30.0
"""Seconds between two readings of an event log for processes that were begun since."""
TREE_LASTS = 0.5
"""Seconds that a look at all processes of this machine serves for."""
_SLACK = 5.0
"""Seconds by which clocks may differ when a process is told from a later one with the same id."""
_LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


class Process(NamedTuple):
    """A process of this machine: ``ticks`` tells it from a later one with the same id."""

    pid: int
    ticks: int


@dataclass
class _Known:
    processes: set[Process] = field(default_factory=set)
    children: set[Process] = field(default_factory=set)
    """What these began, as far as it was seen while they were there."""
    named: set[int] = field(default_factory=set)
    read_at: float = float("-inf")
    looked_at: float = float("-inf")
    looks: int = 0
    gone_since: float | None = None
    alive: bool | None = None
    remembered: dict[str, int] = field(default_factory=dict)
    """What the ledger has of them."""


class Workers:
    """Looks for the processes of runs.

    Args:
        host: where this daemon runs, as in leases.
    """

    def __init__(self, instance: DagsterInstance, ledger: Ledger, host: str):
        self._instance = instance
        self._ledger = ledger
        self._host = host
        self._known: dict[str, _Known] = {}
        self._tree: dict[int, list[Process]] = {}
        self._tree_at = float("-inf")

    def forget_but(self, run_ids: set[str]) -> None:
        """Only these runs are of interest any more."""
        self._known = {id_: known for id_, known in self._known.items() if id_ in run_ids}

    def alive(self, lease: LeaseRecord, run: DagsterRun | None, *, is_over: bool) -> bool | None:
        """Whether any process of a run is there; None where nobody can tell.

        That they are gone counts only after a while where the run goes on.
        """
        now = time.monotonic()
        known = self._known.get(lease.run_id)
        if known is None:
            if not self._is_here(lease, run):
                return None
            seen = (lease.processes or {}).items()
            known = _Known({Process(int(pid), ticks) for pid, ticks in seen})
            known.remembered = dict(lease.processes or {})
            self._known[lease.run_id] = known
        # Until its worker is seen, each pass looks, for a while: it may die soon after it began.
        is_new = not known.processes and known.looks < FIRST_LOOKS
        is_ending = is_over or lease.stop_asked_at is not None
        if not is_ending and not is_new and now - known.looked_at < LOOK_EVERY:
            return known.alive
        known.looked_at, known.looks = now, known.looks + 1
        if run is not None and (
            is_over or now - known.read_at >= READ_AGAIN or not known.processes
        ):
            self._read(lease, run, known)
            known.read_at = now
        if not known.processes:
            # What the log names was never seen here: it may mean something elsewhere.
            return None
        there = {each for each in known.processes | known.children if _works(each)}
        known.children = (there | self._descendants(there, now)) - known.processes
        if is_ending:
            # Whoever looks next has to know them, when those that began them are gone.
            self._remember(lease, known)
        if there:
            known.gone_since, known.alive = None, True
        else:
            known.gone_since = known.gone_since if known.gone_since is not None else now
            known.alive = False if is_over or now - known.gone_since >= GONE_FOR else None
        return known.alive

    def _is_here(self, lease: LeaseRecord, run: DagsterRun | None) -> bool:
        if not isinstance(self._instance.run_launcher, DefaultRunLauncher):
            return False
        if lease.launch_host != self._host or not Path("/proc/self/stat").exists():
            return False
        if lease.processes:
            return True
        if run is None:
            return False
        try:
            server = json.loads(run.tags[GRPC_INFO_TAG])
        except (KeyError, ValueError):
            return False
        return bool(server.get("socket")) or server.get("host") in _LOCAL

    def _read(self, lease: LeaseRecord, run: DagsterRun, known: _Known) -> None:
        for pid, at in processes_in_log(self._instance, run.run_id):
            if pid in known.named:
                continue
            known.named.add(pid)
            ticks = _ticks(pid)
            if ticks is not None and _began(ticks) <= at + _SLACK:
                known.processes.add(Process(pid, ticks))
        if len(known.processes) > len(lease.processes or {}):
            self._remember(lease, known)

    def _remember(self, lease: LeaseRecord, known: _Known) -> None:
        seen = {str(each.pid): each.ticks for each in known.processes | known.children}
        if not seen.items() <= known.remembered.items():
            known.remembered |= seen
            with self._ledger.writing() as session:
                lifecycle.saw_processes(session, lease.id, known.remembered)

    def _descendants(self, of: set[Process], now: float) -> set[Process]:
        """All that these have begun, and that is there."""
        if not of:
            return set()
        if now - self._tree_at >= TREE_LASTS:
            self._tree, self._tree_at = _children(), now
        found: set[Process] = set()
        new = list(of)
        while new:
            children = [
                each
                for each in self._tree.get(new.pop().pid, ())
                if each not in found and not _copies_output(each)
            ]
            found.update(children)
            new += children
        return found

    def signal(self, lease: LeaseRecord, number: int) -> None:
        """Send a signal to all processes of a run that were seen here."""
        known = self._known.get(lease.run_id)
        for process in (known.processes | known.children) if known else ():
            if _is_there(process):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, number)


def _works(process: Process) -> bool:
    """Whether it is there, and may use GPUs."""
    return _is_there(process) and not _copies_output(process)


def _copies_output(process: Process) -> bool:
    try:
        command = Path(f"/proc/{process.pid}/cmdline").read_text(errors="replace")
    except OSError:
        return False
    return copies_output(command.split("\0"))


def _is_there(process: Process) -> bool:
    return _ticks(process.pid) == process.ticks


def _ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; None if it is not there, or only its ruin."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _children() -> dict[int, list[Process]]:
    """The processes of this machine by the process that began each."""
    found: dict[int, list[Process]] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if fields[0] not in ("Z", "X"):
            found.setdefault(int(fields[1]), []).append(Process(int(path.name), int(fields[19])))
    return found


def _began(ticks: int) -> float:
    """Seconds since the epoch at which a process began."""
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - since_boot + ticks / os.sysconf("SC_CLK_TCK")
