"""``--instance``, which all commands that ask an instance have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

instance_option: Callable[[Command], Command] = click.option(
    "--instance",
    "home",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The Dagster instance's folder, or the one that `dagster dev` runs in "
    "[default: DAGSTER_HOME, else that of `dagster dev` here].",
)
