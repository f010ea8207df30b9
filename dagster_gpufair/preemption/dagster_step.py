"""Which step of which run this code is in, if it runs in Dagster: looked at, never imported.

Dagster is in the process already where there is a step to find, and user code elsewhere need not have it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

CONTINUES_TAG = "gpufair/continues"
"""On a run that goes on with what was stopped: ``<request>/<how often it was stopped>``."""


@dataclass(frozen=True, slots=True)
class DagsterStep:
    """A step of a run. ``request`` is the same for all attempts; ``home`` is the instance's folder."""

    run_id: str
    request: str
    key: str | None
    home: Path | None


def current_step() -> DagsterStep | None:
    """The step that runs in this thread, or None outside of a step."""
    dagster = sys.modules.get("dagster")
    context_type = getattr(dagster, "OpExecutionContext", None)
    if context_type is None:
        return None
    try:
        context = context_type.get()
    except Exception:  # noqa: BLE001 - Dagster's own error for: no step in this thread
        return None
    run_id = context.run_id
    request = context.run_tags.get(CONTINUES_TAG, "").rpartition("/")[0] or run_id
    return DagsterStep(run_id, request, _key(context), _home(context))


def _key(context: object) -> str | None:
    try:
        return str(context.get_step_execution_context().step.key)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - not every context has a step, and none should fail for it
        return None


def _home(context: object) -> Path | None:
    try:
        return Path(context.instance.root_directory)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - an instance without a folder of its own
        return None
