"""Every private part of Dagster that the command line relies on, in one place.

``tests/integration/cli/instance/test_cli_dagster_internals.py`` names what is relied on, so that a
Dagster release that moves something fails there, by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dagster import DagsterInstance
from dagster._core.instance.ref import InstanceRef
from dagster._core.secrets.env_file import get_env_var_dict
from dagster._core.workspace.load import location_origins_from_yaml_paths
from dagster._utils.env import environ

_BRACKET_OR_KEY = re.compile(r"[{(\[]|[})\]]|\w+\??:")


class ConfigProblem(NamedTuple):
    """One thing that Dagster finds wrong in ``dagster.yaml``.

    ``keys`` is where, from the root of what was checked; ``unknown`` and ``missing`` name a key there,
    ``known`` those that may stand there, and ``message`` is Dagster's own.
    """

    keys: tuple[str, ...]
    unknown: str | None
    missing: str | None
    known: tuple[str, ...]
    message: str


def open_instance(folder: Path, config: Path) -> DagsterInstance:
    """The instance that keeps its files in ``folder``, by the ``dagster.yaml`` in ``config``."""
    return DagsterInstance.from_ref(InstanceRef.from_dir(str(folder), config_dir=str(config)))


@contextmanager
def env_file() -> Iterator[None]:
    """Within it, the ``.env`` file of the current folder counts, as for Dagster's own commands."""
    with environ(get_env_var_dict(str(Path.cwd()))):
        yield


def locations_in(workspace: Path) -> list[str]:
    """The names of the code locations in a workspace file, of which none is loaded."""
    return [origin.location_name for origin in location_origins_from_yaml_paths([str(workspace)])]


def config_problems(error: Exception) -> list[ConfigProblem]:
    """What a ``DagsterInvalidConfigError`` is about; nothing for other errors."""
    return [_problem(each) for each in getattr(error, "errors", None) or ()]


def _problem(error: Any) -> ConfigProblem:
    reason = getattr(error.reason, "name", "")
    name = getattr(error.error_data, "field_name", None)
    entries = (getattr(entry, "field_name", None) for entry in error.stack.entries)
    return ConfigProblem(
        keys=tuple(str(entry) for entry in entries if entry is not None),
        unknown=name if reason == "FIELD_NOT_DEFINED" else None,
        missing=name if reason == "MISSING_REQUIRED_FIELD" else None,
        known=_known_keys(error.message) if reason == "FIELD_NOT_DEFINED" else (),
        message=error.message,
    )


def _known_keys(message: str) -> tuple[str, ...]:
    """The outermost keys of ``… Expected: "{ enabled?: Bool runs?: { limit: Int } }".``"""
    depth, keys = 0, []
    for found in _BRACKET_OR_KEY.findall(message.partition("Expected:")[2]):
        if found in "{([":
            depth += 1
        elif found in "})]":
            depth -= 1
        elif depth == 1:
            keys.append(found.rstrip("?:"))
    return tuple(keys)
