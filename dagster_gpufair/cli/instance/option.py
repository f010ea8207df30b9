"""``--instance``, which all commands that ask an instance have, and what else says which one is meant."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

DEV_HOME = ".tmp_dagster_home_"
"""How the names of the temporary homes of ``dagster dev`` begin."""

Command = TypeVar("Command", bound=Callable[..., Any])

instance_option: Callable[[Command], Command] = click.option(
    "--instance",
    "home",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The Dagster instance's folder, or the one that `dagster dev` runs in "
    "[default: DAGSTER_HOME, else that of `dagster dev` here].",
)


def may_be_here() -> bool:
    """Whether something here says which instance is meant, if no option does."""
    here = Path.cwd()
    return bool(
        os.environ.get("DAGSTER_HOME") or (here / ".env").exists() or any(here.glob(f"{DEV_HOME}*"))
    )
