"""A run launcher that starts no process: tests see what was launched, and make launches fail or hang."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dagster import DagsterInstance, DagsterRun
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._grpc.client import DagsterGrpcClient
from dagster._serdes import ConfigurableClass, ConfigurableClassData


class StageLauncher(RunLauncher[DagsterInstance], ConfigurableClass):
    """Keeps the ids of the runs it was given, in order, in a file that outlives the process."""

    def __init__(self, inst_data: ConfigurableClassData | None = None):
        self._inst_data = inst_data
        self._changed = threading.Condition()
        self.tried: list[str] = []
        """The runs that were to be launched, whatever came of it."""
        self.terminated: list[str] = []
        self.unreachable: set[str] = set()
        """Code locations that cannot be reached."""
        self.timing_out: set[str] = set()
        """Jobs whose launch is not answered in time, whether it happens or not."""
        self.broken: set[str] = set()
        """Jobs whose launch fails."""
        self.hanging: dict[str, threading.Event] = {}
        """Jobs whose launch hangs until the event is set."""
        self.health: dict[str, WorkerStatus] = {}
        """What it says of the workers of runs; with nothing in it, it cannot look for workers."""
        self.looks = threading.Semaphore(0)
        """Released at each look."""
        self.deaf = False
        """Whether runs that are told to end go on."""
        super().__init__()

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        return self._inst_data

    @classmethod
    def config_type(cls) -> Any:
        return {}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]
    ) -> StageLauncher:
        return cls(inst_data)

    @property
    def _record(self) -> Path:
        return Path(self._instance.root_directory) / "launched.jsonl"

    @property
    def launched(self) -> list[str]:
        if not self._record.exists():
            return []
        return [json.loads(line) for line in self._record.read_text().splitlines()]

    def launch_run(self, context: LaunchRunContext) -> None:
        run = context.dagster_run
        with self._changed:
            self.tried.append(run.run_id)
            self._changed.notify_all()
        origin = run.remote_job_origin
        if origin is not None and origin.location_name in self.unreachable:
            # Nothing listens there, as where a code server is down.
            DagsterGrpcClient(host="127.0.0.1", port=1).ping("")
        if run.job_name in self.timing_out:
            raise DagsterUserCodeUnreachableError("User code server request timed out")
        if run.job_name in self.broken:
            raise RuntimeError("image not found")
        if run.job_name in self.hanging:
            self.hanging[run.job_name].wait(timeout=60)
        with self._record.open("ab", buffering=0) as record:
            record.write(json.dumps(run.run_id).encode() + b"\n")
            os.fsync(record.fileno())
        with self._changed:
            self._changed.notify_all()

    def await_tried(self, *run_ids: str) -> None:
        """Wait until the launches of these runs have begun."""
        self._await(lambda: set(run_ids) <= set(self.tried))

    def await_launched(self, *run_ids: str) -> None:
        """Wait until these runs have been launched."""
        self._await(lambda: set(run_ids) <= set(self.launched))

    def await_count(self, runs: int, timeout: float) -> None:
        """Wait until so many have been launched, or for so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.launched) >= runs, timeout)

    def await_terminated(self, run_id: str, times: int = 1) -> None:
        """Wait until a run has been told to end so many times."""
        self._await(lambda: self.terminated.count(run_id) >= times)

    def _await(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout=60)

    @property
    def supports_check_run_worker_health(self) -> bool:
        return bool(self.health)

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        self.looks.release()
        return CheckRunHealthResult(self.health.get(run.run_id, WorkerStatus.RUNNING))

    def terminate(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        assert run is not None
        if not self.deaf:
            self._instance.report_run_canceling(run)
            self._instance.report_run_canceled(run)
        with self._changed:
            self.terminated.append(run_id)
            self._changed.notify_all()
        return True
