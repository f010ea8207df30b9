"""What a policy file would mean for the instance that it is meant for: its code locations and its runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from dagster_gpufair.cli.output.text import counted, plain, sentence
from dagster_gpufair.policy.left_behind import LeftBehind
from dagster_gpufair.scheduling.model import Preemption

WORKSPACE = "workspace.yaml"
_SHOWN = 8


class OnInstance(NamedTuple):
    """What a policy would mean there, with the names of all that runs or waits.

    ``stops`` is None where it stops nothing ever, or there is no ledger to ask.
    """

    stops: Sequence[Preemption] | None = None
    left: Sequence[LeftBehind] = ()
    locations: Collection[str] = ()
    names: Mapping[str, str] = {}


def workspace_locations(given: Path | None, policy_file: Path) -> list[str] | None:
    """The code locations of a workspace file: the given one, or that beside the policy or here.

    None where there is no such file, or none that can be read.

    Raises:
        click.ClickException: if the given file cannot be read.
    """
    beside = (policy_file.parent / WORKSPACE, Path(WORKSPACE))
    file = given or next((path for path in beside if path.is_file()), None)
    if file is None:
        return None
    from dagster_gpufair.cli.instance.dagster_internals import locations_in

    try:
        # Whatever Dagster raises for a file that is no workspace.
        return locations_in(file)
    except Exception as error:
        if given is None:
            return None
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise click.ClickException(
            f"The workspace file {file} cannot be read: {sentence(first)}"
        ) from error


def all_left_behind(
    groups: Sequence[LeftBehind], names: Mapping[str, str]
) -> Iterator[tuple[int, str]]:
    """Lines with their depth: what is gone, and under it who still goes by it."""
    if not groups:
        return
    runs = {id_ for group in groups for id_ in (*group.holding, *group.waiting)}
    yield 0, f"This policy would leave {counted(len(runs), 'run')} behind:"
    for group in groups:
        yield 1, sentence(group.message)
        if group.holding:
            verb = "goes on until it ends" if len(group.holding) == 1 else "go on until they end"
            yield 2, f"{counted(len(group.holding), 'run')} {verb}: {_ids(group.holding, names)}"
        if group.waiting:
            verb = "waits and cannot start" if len(group.waiting) == 1 else "wait and cannot start"
            yield 2, f"{counted(len(group.waiting), 'run')} {verb}: {_ids(group.waiting, names)}"
    yield (
        0,
        "Keep what is gone in the file until these runs have ended, or cancel them and launch them "
        "again with other tags.",
    )


def left_behind_json(group: LeftBehind) -> dict[str, Any]:
    """One key that is gone, for programs."""
    return {
        "path": group.path,
        "message": group.message,
        "holding": list(group.holding),
        "waiting": list(group.waiting),
    }


def _ids(ids: Sequence[str], names: Mapping[str, str]) -> str:
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(plain(names.get(id_, id_)) for id_ in ids[:_SHOWN]) + more
