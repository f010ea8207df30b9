"""A run launcher that starts no process: tests see what was launched, and make launches fail or hang."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from dagster import DagsterInstance
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher import LaunchRunContext, RunLauncher
from dagster._serdes import ConfigurableClass, ConfigurableClassData


class StageLauncher(RunLauncher[DagsterInstance], ConfigurableClass):
    """Keeps the ids of the runs it was given, in order."""

    def __init__(self, inst_data: ConfigurableClassData | None = None):
        self._inst_data = inst_data
        self.launched: list[str] = []
        self.terminated: list[str] = []
        self.unreachable: set[str] = set()
        """Code locations that cannot be reached."""
        self.broken: set[str] = set()
        """Jobs whose launch fails."""
        self.hanging: dict[str, threading.Event] = {}
        """Jobs whose launch hangs until the event is set."""
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

    def launch_run(self, context: LaunchRunContext) -> None:
        run = context.dagster_run
        origin = run.remote_job_origin
        if origin is not None and origin.location_name in self.unreachable:
            raise DagsterUserCodeUnreachableError("connection refused")
        if run.job_name in self.broken:
            raise RuntimeError("image not found")
        if run.job_name in self.hanging:
            self.hanging[run.job_name].wait(timeout=60)
        self.launched.append(run.run_id)

    def terminate(self, run_id: str) -> bool:
        self.terminated.append(run_id)
        run = self._instance.get_run_by_id(run_id)
        assert run is not None
        self._instance.report_run_canceling(run)
        self._instance.report_run_canceled(run)
        return True
