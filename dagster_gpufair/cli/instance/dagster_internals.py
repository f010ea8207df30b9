"""Every private part of Dagster that the command line relies on, in one place.

``tests/integration/cli/instance/test_cli_dagster_internals.py`` names what is relied on, so that a Dagster
release that moves something fails there, by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dagster import DagsterInstance
from dagster._core.instance.ref import InstanceRef
from dagster._core.secrets.env_file import get_env_var_dict
from dagster._utils.env import environ


def open_instance(folder: Path, config: Path) -> DagsterInstance:
    """The instance that keeps its files in ``folder``, by the ``dagster.yaml`` in ``config``."""
    return DagsterInstance.from_ref(InstanceRef.from_dir(str(folder), config_dir=str(config)))


@contextmanager
def env_file() -> Iterator[None]:
    """Within it, the ``.env`` file of the current folder counts, as for Dagster's own commands."""
    with environ(get_env_var_dict(str(Path.cwd()))):
        yield
