"""The policy file from its text: everything that is wrong with it at once, or the policy."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dagster_gpufair.policy.checks import problems_of
from dagster_gpufair.policy.models import Policy, Pool
from dagster_gpufair.policy.problems import PolicyError, PolicyFileMissing, Problem, dotted, shown
from dagster_gpufair.policy.wording import worded
from dagster_gpufair.policy.yaml_text import LARGEST_TEXT, decode, read_yaml

# Beyond this many errors their consequences are not worth looking for.
_MANY = 200
# Taking a wrong value out may leave its entry without a key that it needs.
_TRIES = 3
_NAMED = ("pools", "teams", "tiers", "projects")
"""Groups of entries whose names stand elsewhere too."""

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
"""What stands where a file should, by the test for it."""


class _NotAFile(OSError):
    """There is something else under the path, named in the message."""


def read_policy(path: str | Path) -> tuple[str, Policy]:
    """A policy file's text and what it says.

    Raises:
        PolicyFileMissing: if there is no such file.
        PolicyError: if it cannot be read, or is no sound policy.
    """
    source = str(path)
    try:
        data = _regular_file(path)
    except FileNotFoundError:
        message = "no such file; `gpufair init` writes one"
        raise PolicyFileMissing([Problem("", message)], source) from None
    except (OSError, ValueError) as error:
        raise PolicyError([Problem("", _unreadable(error))], source) from None
    text = decode(data, source)
    return text, parse_policy(text, source)


def _regular_file(path: str | Path) -> bytes:
    """The bytes of a file, of a large one only the first: one more than a policy may have.

    Raises:
        OSError: if it cannot be read, or is a pipe, a device or the like, which might never end.
        ValueError: if no file can have such a path.
    """
    # Opening a pipe waits for who writes to it, unless told not to.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError
        if not stat.S_ISREG(mode):
            raise _NotAFile(next((kind for test, kind in _KINDS if test(mode)), "no regular file"))
        return file.read(LARGEST_TEXT + 1)


def parse_policy(text: str | bytes, source: str = "gpufair.yaml") -> Policy:
    """The policy that a text says.

    Raises:
        PolicyError: with every problem found, each at its key.
    """
    data, problems = read_yaml(text, source)
    if data is None:
        raise PolicyError([Problem("", "is empty; a policy has pools and teams")], source)
    return _policy(data, problems, source)


def policy_from(data: Any, source: str = "gpufair.yaml", under: str = "") -> Policy:
    """The policy in values that were read already, such as the ``policy`` of a case file.

    ``under`` is the path that they stand at in ``source``.

    Raises:
        PolicyError: with every problem found, each at its key.
    """
    try:
        return _policy(data, [], source)
    except PolicyError as error:
        placed = [replace(problem, path=_under(under, problem.path)) for problem in error.problems]
        raise PolicyError(placed, source) from None


def _policy(data: Any, written: Sequence[Problem], source: str) -> Policy:
    """``written`` are problems with how the data was written."""
    if not isinstance(data, dict):
        message = f"must be keys and values, from pools: and teams: on, not {shown(data)}"
        raise PolicyError([*written, Problem("", message)], source)
    found = list(written)
    policy: Policy | None
    try:
        policy = Policy.model_validate(data)
    except ValidationError as error:
        paths = {problem.path for problem in found}
        found += [problem for problem in worded(error) if problem.path not in paths]
        policy = _sound_part(data, error)
    if policy is not None and not _may_lose_names(data, found):
        paths = {problem.path for problem in found}
        rest = _of_known_size(policy, paths)
        found += [problem for problem in problems_of(rest) if not _rests_on(problem.path, paths)]
    if found or policy is None:
        raise PolicyError(found, source)
    return policy


def _sound_part(data: dict[str, Any], error: ValidationError) -> Policy | None:
    """The policy without what is wrong, so that one look finds also what is wrong with the rest."""
    for _ in range(_TRIES):
        if error.error_count() > _MANY:
            return None
        unsound = []
        for detail in error.errors(include_url=False):
            where = detail["loc"][:-1] if detail["type"] == "missing" else detail["loc"]
            # A list with something wrong in it goes as a whole.
            keys = list(takewhile(lambda part: isinstance(part, str), where))
            if not keys:
                return None
            unsound.append(keys)
        data = _without(data, unsound)
        try:
            return Policy.model_validate(data)
        except ValidationError as further:
            error = further
    return None


def _without(data: Any, paths: Sequence[Sequence[str | int]], of: str = "") -> Any:
    """The data without what is at these paths; of an entry that others name, the name stays.

    ``of`` is the key that the data stands at.
    """
    if not isinstance(data, dict):
        return data
    dropped = {path[0] for path in paths if len(path) == 1}
    return {
        key: {}
        if key in dropped
        else _without(value, [path[1:] for path in paths if path[0] == key], str(key))
        for key, value in data.items()
        if key not in dropped or of in _NAMED
    }


def _of_known_size(policy: Policy, unsound: Set[str]) -> Policy:
    """The policy, but without GPUs in pools whose number of GPUs an error may have changed.

    What is compared with the size of a pool is compared with none of these.
    """
    pools = {
        name: Pool() if _size_rests_on(dotted("pools", name), unsound) else pool
        for name, pool in policy.pools.items()
    }
    return policy.model_copy(update={"pools": pools})


def _size_rests_on(pool: str, unsound: Set[str]) -> bool:
    sizes = (f"{pool}.nodes", f"{pool}.gpus")
    return pool in unsound or any(_is_in(path, size) for path in unsound for size in sizes)


def _rests_on(path: str, unsound: Set[str]) -> bool:
    """Whether a finding may come from what is wrong already: it is there, or sums up the entry."""
    if any(_is_in(other, path) for other in unsound):
        return True
    owner = _owner(path)
    whole = path == owner or ": " in path
    return whole and any(_owner(other) == owner for other in unsound)


def _is_in(path: str, group: str) -> bool:
    """Whether a path is another, or is somewhere inside it."""
    return path == group or path.startswith((f"{group}.", f"{group}["))


def _owner(path: str) -> str:
    """The team, tier or section that a path lies in."""
    return ".".join(path.split(".")[:2])


def _may_lose_names(data: dict[str, Any], found: Sequence[Problem]) -> bool:
    """Whether an error may hide a pool, a team, a tier or a project that other keys rightly name."""
    groups = {problem.path.rpartition(".")[2] for problem in found}
    if not groups.isdisjoint((*_NAMED, "<<")):
        return True
    return "tiers" not in data and any("'tiers'" in problem.message for problem in found)


def _under(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix and path else prefix or path


def _unreadable(error: OSError | ValueError) -> str:
    if isinstance(error, IsADirectoryError):
        return "is a folder; give the policy file in it"
    if isinstance(error, _NotAFile):
        return f"is {error}; give a file"
    if isinstance(error, PermissionError):
        return "may not be read by this user"
    return f"cannot be read: {error}"
