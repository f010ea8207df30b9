"""``gpufair demo`` as a user runs it: whole processes, from the command line to the last of them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from dagster import DagsterInstance
from sqlalchemy import URL

from dagster_gpufair.ledger import leases
from dagster_gpufair.ledger.audit import ungated_use, violations
from dagster_gpufair.ledger.connect import Ledger

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="needs /proc to find processes by their home"
)

COMMAND = (sys.executable, "-m", "dagster_gpufair.cli.main", "demo")
PATIENCE = 600.0
"""Seconds until a demo that hangs is ended, so that the test fails."""
CTRL_C = b"\x03"


@dataclass
class Demo:
    """A demo under way. ``said`` is what it has printed so far."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    said: str = ""

    def read_until(self, text: str) -> None:
        """Await that it prints something."""
        while text not in self.said:
            assert self._read(), f"it ended without saying {text!r}:\n{self.said}"

    def end(self) -> int:
        """Await its end; returns the exit code."""
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        try:
            some = os.read(self.output.fileno(), 65536)
        except OSError:  # what a terminal says when nobody writes to it any more
            some = b""
        self.said += some.decode(errors="replace")
        return bool(some)


Start = Callable[..., Demo]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Starts a demo; whatever a test left undone is ended after it."""
    started: list[tuple[Demo, threading.Timer]] = []

    def begin(*arguments: str, output: IO[bytes] | None = None, **options: Any) -> Demo:
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.STDOUT)
        process = subprocess.Popen([*COMMAND, *arguments], **options)
        demo = Demo(process, output or process.stdout)  # type: ignore[arg-type]
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        started.append((demo, watchdog))
        return demo

    yield begin
    for demo, watchdog in started:
        watchdog.cancel()
        demo.process.kill()
        demo.process.wait()
        demo.output.close()
    for pid in processes_of(home):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return int(any_port.getsockname()[1])


def test_the_workload_ends_as_it_should_and_the_record_says_the_same(
    start: Start, home: Path, port: int
) -> None:
    demo = start(
        *("--exit-when-done", "--port", str(port), "--home", str(home)),
        *("--seconds", "1", "--shards", "3"),
    )

    assert demo.end() == 0, demo.said
    assert f"http://127.0.0.1:{port}" in demo.said
    assert f"export DAGSTER_HOME={home}" in demo.said
    assert "The workload is done: 21 runs" in demo.said
    # team, runs, started, refused, asked for GPUs
    assert re.search(r"^nlp +9 +7 +2 +8 ", demo.said, re.M)
    assert re.search(r"^vision +10 +9 +1 +10 ", demo.said, re.M)
    assert re.search(r"^platform +2 +2 +0 +1 ", demo.said, re.M)
    for code in ("tier_not_allowed", "exceeds_pool", "invalid_request"):
        assert re.search(rf"^    {code}: \w", demo.said, re.M)
    assert "violations: none, in the record of 17 grants" in demo.said
    assert processes_of(home) == []

    ledger = Ledger(URL.create("sqlite", database=str(home / "gpufair.db")))
    with ledger.reading() as session:
        record = leases.ever(session)
        assert violations(session) == []
        assert ungated_use(session) == []
    ledger.dispose()
    assert len(record) == 17
    # One run was stopped for another, and went on from its checkpoint.
    (stopped,) = (lease for lease in record if lease.release_reason != "success")
    assert stopped.state == "preempted"
    (went_on,) = (
        lease for lease in record if lease.request_id == stopped.request_id and lease is not stopped
    )
    assert f"{went_on.run_id[:8]} went on with the work of {stopped.run_id[:8]}" in demo.said
    with DagsterInstance.from_config(str(home)) as instance:
        said = " ".join(log.user_message for log in instance.all_logs(went_on.run_id))
    began = re.search(r"begins after epoch (\d+) of 24", said)
    assert began is not None
    assert int(began[1]) > 0
    highest = re.search(r"^h100 +16 +(\d+) ", demo.said, re.M)
    assert highest is not None
    assert int(highest[1]) in range(8, 17)


def test_a_run_that_did_not_end_as_it_should_is_named_and_the_exit_code_says_so(
    start: Start, home: Path, port: int
) -> None:
    demo = start(
        *("--exit-when-done", "--port", str(port), "--home", str(home)),
        *("--seconds", "12", "--shards", "1"),
    )
    # The gang waits for a whole node as long as the first runs hold theirs.
    demo.read_until("nlp pretrain asks for 8")
    runs = ask(port, "{runsOrError {... on Runs {results {runId jobName status}}}}")
    (gang,) = (run for run in runs["runsOrError"]["results"] if run["jobName"] == "pretrain")

    policy = "MARK_AS_CANCELED_IMMEDIATELY"
    ask(
        port,
        f'mutation {{terminateRun(runId: "{gang["runId"]}", terminatePolicy: {policy}) {{__typename}}}}',
    )

    assert demo.end() == 1, demo.said
    wrong = f"nlp pretrain {gang['runId'][:8]} should have succeeded, and is CANCELED"
    assert f"Not as it should be\n  {wrong}\n" in demo.said
    assert "violations: none" in demo.said
    assert f"The record and the logs are kept in {home}" in demo.said
    assert processes_of(home) == []


def test_ctrl_c_in_a_terminal_stops_everything(start: Start, home: Path, port: int) -> None:
    ours, theirs = pty.openpty()
    demo = start(
        *("--port", str(port), "--home", str(home), "--seconds", "300", "--shards", "2"),
        output=os.fdopen(ours, "r+b", buffering=0),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env={**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "50"},
    )
    os.close(theirs)
    demo.read_until("granted 4 h100")
    assert processes_of(home) != []

    demo.output.write(CTRL_C)

    assert demo.end() == 128 + signal.SIGINT, demo.said
    assert "Stopping what the demo has started" in demo.said
    assert "Traceback" not in demo.said
    assert processes_of(home) == []
    assert (home / "gpufair.db").exists(), "a home that was given is kept"


def test_a_script_stops_it_by_sigterm_and_the_temporary_home_goes(start: Start, port: int) -> None:
    demo = start(
        *("--port", str(port)),
        # As a shell starts what a script puts in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    demo.read_until("vision train asks for")
    found = re.search(r"export DAGSTER_HOME=(\S+)", demo.said)
    assert found is not None
    temporary = Path(found[1])
    assert processes_of(temporary) != []

    demo.process.send_signal(signal.SIGTERM)

    assert demo.end() == 128 + signal.SIGTERM, demo.said
    assert "Traceback" not in demo.said
    assert processes_of(temporary) == []
    assert not temporary.exists()


def test_a_server_that_dies_ends_the_demo_with_its_last_words(
    start: Start, home: Path, port: int
) -> None:
    demo = start("--port", str(port), "--home", str(home))
    demo.read_until("Dagster is at")
    (web_server,) = processes_of(home, "dagster_webserver")

    os.kill(web_server, signal.SIGKILL)

    assert demo.end() == 1, demo.said
    assert "The webserver process has ended by itself (signal 9)" in demo.said
    assert f"The end of {home / 'server_logs' / 'webserver.log'}:" in demo.said
    assert "Serving dagster-webserver on" in demo.said
    assert "Traceback" not in demo.said
    assert processes_of(home) == []


def test_a_port_that_is_taken_is_refused_before_anything_is_started(
    start: Start, home: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        demo = start("--port", str(port), "--home", str(home))

        assert demo.end() == 1
    assert re.fullmatch(
        rf"Error: Port {port} of 127\.0\.0\.1 is taken: another program serves there\. "
        r"Stop that, or choose another: gpufair demo --port \d+\n",
        demo.said,
    )
    assert not home.exists()


def test_a_home_with_something_in_it_is_left_alone(start: Start, home: Path, port: int) -> None:
    home.mkdir()
    (home / "dagster.yaml").write_text("mine: true")

    demo = start("--port", str(port), "--home", str(home))

    assert demo.end() == 1
    assert f"{home} is not empty" in demo.said
    assert [path.name for path in home.iterdir()] == ["dagster.yaml"]
    assert (home / "dagster.yaml").read_text() == "mine: true"


def ask(port: int, query: str) -> Any:
    """What the demo's web server answers to a query."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql",
        json.dumps({"query": query}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        return json.load(response)["data"]


def processes_of(home: Path, said_in_command: str = "") -> Sequence[int]:
    """The processes that were started for a DAGSTER_HOME, and what these have started in turn."""
    mark = f"DAGSTER_HOME={home.resolve()}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        if mark in environment and said_in_command in command:
            found.append(int(folder.name))
    return found
