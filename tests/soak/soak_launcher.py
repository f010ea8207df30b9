"""Dagster's default launcher; some of its calls hang, come late, or raise although they did their work."""

from __future__ import annotations

import random
import time
import zlib
from typing import Any

from dagster import DefaultRunLauncher
from dagster._core.launcher import LaunchRunContext

HANGS = 14.0
"""Seconds: longer than a launch may take before its lane goes on without it."""


class SoakLauncher(DefaultRunLauncher):
    """What befalls a run's launch and stop depends on its id alone."""

    def launch_run(self, context: LaunchRunContext) -> None:
        chance = self._chance(context.dagster_run.run_id)
        befalls = chance.choice(["nothing"] * 6 + ["hangs before", "hangs after", "late", "fails"])
        if befalls == "fails":
            raise RuntimeError("the launcher is not in the mood")
        if befalls == "hangs before":
            time.sleep(HANGS)
        super().launch_run(context)
        if befalls == "hangs after":
            time.sleep(HANGS)
        if befalls == "late":
            raise TimeoutError("no answer within the time")

    def terminate(self, run_id: str) -> Any:
        befalls = self._chance(run_id).choice(["nothing", "hangs", "does nothing"])
        if befalls == "hangs":
            time.sleep(HANGS)
        if befalls == "does nothing" and random.random() < 0.5:
            return True
        return super().terminate(run_id)

    @staticmethod
    def _chance(run_id: str) -> random.Random:
        return random.Random(zlib.crc32(run_id.encode()))
