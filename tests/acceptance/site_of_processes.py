"""A whole Dagster: code server, web server and daemon as processes of their own, asked over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from dagster import DagsterInstance

from dagster_gpufair.ledger import audit, leases
from dagster_gpufair.ledger.connect import ledger_of

HOST = "127.0.0.1"
WITHIN = 120.0
"""Seconds after which something that should happen is taken not to."""
JOBS = Path(__file__).with_name("jobs.py")
POLICY = """
pools: {a100: {gpus: 2}}
teams: {red: {quota: {a100: 2}}, blue: {}}
"""
LAUNCH = """
mutation($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}
"""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Site:
    """Starts, kills and asks the processes; `close` ends what is left of them."""

    def __init__(
        self,
        home: Path,
        storage: dict[str, Any] | None = None,
        *,
        jobs: Path = JOBS,
        policy: str = POLICY,
        environment: dict[str, str] | None = None,
        **sections: Any,
    ):
        self._environment = environment or {}
        self.home = home
        self.port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (home / "leave").mkdir()
        (home / "output").mkdir()
        self.policy_file = home / "gpufair.yaml"
        self.policy_file.write_text(policy)
        code_port = free_port()
        config: dict[str, Any] = {
            "run_coordinator": {
                "module": "dagster_gpufair",
                "class": "GpuFairRunCoordinator",
                "config": {"policy": "gpufair.yaml", "dequeue_interval_seconds": 1},
            },
            "telemetry": {"enabled": False},
            **sections,
        }
        if storage is not None:
            config["storage"] = storage
        (home / "dagster.yaml").write_text(yaml.safe_dump(config))
        server = {"host": HOST, "port": code_port, "location_name": "jobs"}
        (home / "workspace.yaml").write_text(
            yaml.safe_dump({"load_from": [{"grpc_server": server}]})
        )
        self._code_port = code_port
        self._code = (
            "dagster",
            "api",
            "grpc",
            "-f",
            str(jobs),
            "--host",
            HOST,
            "-p",
            str(code_port),
        )
        self.start_code()
        self.start_web()
        with _importing(self._environment.get("PYTHONPATH")):
            self.instance = DagsterInstance.from_config(str(home))

    def start_code(self, **environment: str) -> None:
        """The code server, which starts the workers of runs."""
        self._start("code", *self._code, "--location-name", "jobs", **environment)
        self.await_(lambda: _listens(self._code_port), "the code server")

    def start_web(self) -> None:
        workspace = ("-w", str(self.home / "workspace.yaml"))
        self._start("web", "dagster_webserver", "-h", HOST, "-p", str(self.port), *workspace)
        self.await_(lambda: _listens(self.port), "the web server")

    def start_daemon(self, name: str = "daemon", **environment: str) -> None:
        workspace = ("-w", str(self.home / "workspace.yaml"))
        self._start(name, "dagster._daemon", "run", *workspace, **environment)

    def kill(self, name: str = "daemon") -> None:
        """As a machine that loses power."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def worker(self, run_id: str) -> int:
        """The process id of a run's worker."""
        (pid,) = re.findall(r"Started process for run \(pid: (\d+)\)", self.events(run_id))
        return int(pid)

    def kill_worker(self, run_id: str) -> None:
        """As the kernel does when memory runs out."""
        os.kill(self.worker(run_id), signal.SIGKILL)

    def events(self, run_id: str) -> str:
        """All that a run's event log says."""
        logs = self.instance.all_logs(run_id)
        return "\n".join(log.dagster_event.message or "" for log in logs if log.dagster_event)

    def said(self, run_id: str) -> str:
        """All that a run's code has logged, too."""
        return "\n".join(log.user_message for log in self.instance.all_logs(run_id))

    def starts(self, run_id: str) -> int:
        """How often a run's process has started."""
        logs = self.instance.all_logs(run_id)
        return sum(
            log.dagster_event is not None and log.dagster_event.event_type_value == "PIPELINE_START"
            for log in logs
        )

    def signal(self, name: str, number: int) -> None:
        """Pause a process, or let it go on."""
        self._processes[name].send_signal(number)

    def launch(self, job: str, config: dict[str, Any] | None = None, **tags: str) -> str:
        """Launch a run as the UI does; its id."""
        selector = {
            "repositoryLocationName": "jobs",
            "repositoryName": "__repository__",
            "jobName": job,
        }
        written = [
            {"key": key if "/" in key else f"gpufair/{key}", "value": value}
            for key, value in tags.items()
        ]
        params: dict[str, Any] = {"selector": selector, "executionMetadata": {"tags": written}}
        if config is not None:
            params["runConfigData"] = json.dumps(config)
        results: list[dict[str, Any]] = []

        def is_there() -> bool:
            """The web server looks anew at a code server that was begun again."""
            results.append(self.graphql(LAUNCH, {"params": params})["launchRun"])
            return results[-1]["__typename"] != "PipelineNotFoundError"

        self.await_(is_there, f"job {job} to be found")
        result = results[-1]
        assert result["__typename"] == "LaunchRunSuccess", result
        return str(result["run"]["runId"])

    def graphql(self, query: str, variables: dict[str, Any]) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"{self.url}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def status(self, run_id: str) -> str:
        run = self.instance.get_run_by_id(run_id)
        return run.status.value if run else "gone"

    def tag(self, run_id: str, key: str) -> str:
        run = self.instance.get_run_by_id(run_id)
        return run.tags.get(f"gpufair/{key}", "") if run else ""

    def let_end(self, run_id: str = "all") -> None:
        """Let a run, or all of them, come to its end."""
        (self.home / "leave" / run_id).touch()

    def await_status(self, run_id: str, status: str) -> None:
        self.await_(lambda: self.status(run_id) == status, f"run {run_id} to be {status}")

    def await_(self, happened: Callable[[], object], what: str) -> None:
        """Wait for something to happen; fail with the processes' last words if it does not."""
        until = time.monotonic() + WITHIN
        while not happened():
            if time.monotonic() > until:
                raise AssertionError(f"waited in vain for {what}\n{self._last_words()}")
            time.sleep(0.1)

    def holders(self) -> set[str]:
        """The runs that hold GPUs, as the ledger has it."""
        with ledger_of(self.instance).reading() as session:
            return {lease.run_id for lease in leases.open_leases(session)}

    def has_seen_worker(self, run_id: str) -> bool:
        """Whether the daemon has seen the processes of a run that holds GPUs."""
        with ledger_of(self.instance).reading() as session:
            return any(lease.processes for lease in leases.of_run(session, run_id))

    def violations(self) -> list[str]:
        with ledger_of(self.instance).reading() as session:
            return list(audit.violations(session))

    def close(self) -> None:
        """End every process, and what it has started."""
        self.let_end()
        for name in list(self._processes):
            process = self._processes.pop(name)
            _end_group(process)
        self.instance.dispose()

    def _start(self, name: str, *module_and_arguments: str, **more: str) -> None:
        ours = {"DAGSTER_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}
        environment = {**os.environ, **ours, **self._environment, **more}
        with (self.home / "output" / name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", *module_and_arguments],
                env=environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, name: str = "daemon") -> str:
        return (self.home / "output" / name).read_text(errors="replace")

    def _last_words(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted((self.home / "output").iterdir())
        )


@contextmanager
def _importing(folder: str | None) -> Iterator[None]:
    """What ``dagster.yaml`` names may lie in a folder of the test's."""
    if folder is not None and folder not in sys.path:
        sys.path.insert(0, folder)
    yield


def _listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex((HOST, port)) == 0


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
