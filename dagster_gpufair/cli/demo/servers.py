"""The processes of the demo: code servers, web server, daemon, and the runs that these start.

Each server leads a process group, which what it starts stays in. So everything can be stopped and
waited for, whatever has become of the server itself.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from dagster_gpufair.cli.demo.home import HOST, Example, Home, socket_folder, write_workspace
from dagster_gpufair.cli.demo.interrupts import Interrupts

_READY_WITHIN = 180.0
_POLITE = 20.0
"""Seconds that processes have to end by themselves before they are killed."""
_KILLED = 10.0
_BEAT = 0.1
_LAST_LINES = 15


@dataclass(frozen=True)
class _Server:
    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Servers:
    """Dagster, serving the example from a home. Stopped when left, whatever happened."""

    def __init__(self, example: Example, home: Home, port: int, interrupts: Interrupts):
        self._example = example
        self._home = home
        self._port = port
        self._interrupts = interrupts
        self._servers: list[_Server] = []
        self._closing = ExitStack()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stop()
        finally:
            self._closing.close()

    def start_code(self) -> None:
        """Start a code server for each location, and wait until they answer."""
        folder = self._closing.enter_context(socket_folder(self._home))
        sockets = {name: folder / f"{name}.sock" for name in self._example.modules}
        for name, module in self._example.modules.items():
            self._start(
                name,
                *("dagster", "api", "grpc", "--module-name", module, "--location-name", name),
                *("--working-directory", str(self._example.root), "--socket", str(sockets[name])),
            )
        for path in sockets.values():
            self.wait_for(lambda path=path: _answers(path), "the code servers")  # type: ignore[misc]
        write_workspace(self._home, sockets)

    def start_web(self) -> None:
        """Start the web server; it is ready some seconds later."""
        self._start(
            "webserver",
            *("dagster_webserver", "--host", HOST, "--port", str(self._port)),
            *("--workspace", str(self._home.workspace)),
        )

    def start_daemon(self) -> None:
        """Start the daemon, which takes up backfills and launches what is queued."""
        self._start("daemon", "dagster._daemon", "run", "--workspace", str(self._home.workspace))

    def check(self) -> None:
        """Make sure that all are there.

        Raises:
            click.ClickException: if one has ended, with the last it said.
        """
        for server in self._servers:
            code = server.process.poll()
            if code is not None:
                raise click.ClickException(
                    f"The {server.name} process has ended by itself ({_ended(code)}). "
                    f"{last_words(server.log)}"
                )

    def wait_for(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until something is ready.

        Raises:
            click.ClickException: if a server ends meanwhile, or it takes much too long.
            Interrupted: if somebody wants to end.
        """
        until = time.monotonic() + _READY_WITHIN
        while not ready():
            self.check()
            if time.monotonic() > until:
                raise click.ClickException(
                    f"Gave up waiting for {what} after {_READY_WITHIN:.0f} seconds. "
                    f"What they said is in {self._home.logs}."
                )
            self._interrupts.wait(_BEAT)

    def _start(self, name: str, *module_and_arguments: str) -> None:
        log = self._home.logs / f"{name}.log"
        # A setting for another instance must not change this one.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DAGSTER_")}
        environment["DAGSTER_HOME"] = str(self._home.folder)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *module_and_arguments],
                cwd=self._example.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._servers.append(_Server(name, process, log))

    def _stop(self) -> None:
        """The daemon and the web server first, so that nothing new is begun; then runs and code."""
        if not self._servers:
            return
        with suppress(OSError):  # there may be no terminal any more
            click.echo("Stopping what the demo has started …")
        fronts = [s for s in self._servers if s.name not in self._example.modules]
        code = [s for s in self._servers if s.name in self._example.modules]
        for servers in (fronts, code):
            _signal(servers, signal.SIGTERM)
            self._await_end(servers)

    def _await_end(self, servers: Sequence[_Server]) -> None:
        asked = self._interrupts.count
        until = time.monotonic() + _POLITE
        # Who asks again does not want to wait.
        while _left(servers) and time.monotonic() < until and self._interrupts.count <= asked:
            time.sleep(_BEAT)
        until = time.monotonic() + _KILLED
        while (left := _left(servers)) and time.monotonic() < until:
            _signal(left, signal.SIGKILL)
            time.sleep(_BEAT)
        if left:
            groups = ", ".join(f"{server.name} ({server.process.pid})" for server in left)
            with suppress(OSError):
                click.echo(f"These processes could not be stopped: {groups}", err=True)


def last_words(log: Path) -> str:
    """The end of a log, for people to read."""
    with suppress(OSError), log.open(encoding="utf-8", errors="replace") as lines:
        last = [click.unstyle(line.rstrip()) for line in deque(lines, _LAST_LINES)]
        if last:
            return "\n".join([f"The end of {log}:", *(f"  {line}" for line in last)])
    return f"It said nothing in {log}."


def _answers(path: Path) -> bool:
    """Whether a code server listens: it does so once its code is loaded."""
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(str(path)) == 0


def _ended(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _signal(servers: Sequence[_Server], number: signal.Signals) -> None:
    for server in _left(servers):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(server.process.pid, number)


def _left(servers: Sequence[_Server]) -> list[_Server]:
    """The servers of which a process is left, be it a run that one has started."""
    return [s for s in servers if s.process.poll() is None or _has_members(s.process.pid)]


def _has_members(group: int) -> bool:
    """Whether a process of the group runs; one that has ended and waits to be looked at does not."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # macOS says the latter of ended processes
        return False
    states = [_state_and_group(stat) for stat in Path("/proc").glob("[0-9]*/stat")]
    return not states or any(found == group and state not in "ZX" for state, found in states)


def _state_and_group(stat: Path) -> tuple[str, int]:
    """The state of a process of Linux, and its process group."""
    try:
        state, _parent, group, *_rest = stat.read_text().rpartition(")")[2].split()
    except (OSError, ValueError):  # it has ended meanwhile
        return "X", 0
    return state, int(group)
