"""The policy file from its text: everything that is wrong with it at once, or the policy."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dagster_gpufair.policy.checks import problems_of
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.problems import PolicyError, Problem, shown
from dagster_gpufair.policy.wording import worded
from dagster_gpufair.policy.yaml_text import LARGEST_TEXT, decode, read_yaml

# Beyond this many errors their consequences are not worth looking for.
_MANY = 200
# Taking a wrong value out may leave its entry without a key that it needs.
_TRIES = 3


def read_policy(path: str | Path) -> tuple[str, Policy]:
    """A policy file's text and what it says.

    Raises:
        PolicyError: if it cannot be read, or is no sound policy.
    """
    source = str(path)
    try:
        with Path(path).open("rb") as file:
            # One more than allowed: also a device or a pipe without an end is read no further.
            data = file.read(LARGEST_TEXT + 1)
    except (OSError, ValueError) as error:
        raise PolicyError([Problem("", _unreadable(error))], source) from None
    text = decode(data, source)
    return text, parse_policy(text, source)


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
    if policy is not None and not any(_may_lose_names(problem.path) for problem in found):
        paths = {problem.path for problem in found}
        found += [problem for problem in problems_of(policy) if not _rests_on(problem.path, paths)]
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


def _without(data: Any, paths: Sequence[Sequence[str | int]]) -> Any:
    if not isinstance(data, dict):
        return data
    dropped = {path[0] for path in paths if len(path) == 1}
    return {
        key: _without(value, [path[1:] for path in paths if path[0] == key and len(path) > 1])
        for key, value in data.items()
        if key not in dropped
    }


def _rests_on(path: str, unsound: Set[str]) -> bool:
    """Whether a finding may come from what is wrong already: it is there, or sums up the entry."""
    if path in unsound:
        return True
    owner = _owner(path)
    whole = path == owner or ": " in path
    return whole and any(_owner(other) == owner for other in unsound)


def _owner(path: str) -> str:
    """The team, tier or section that a path lies in."""
    return ".".join(path.split(".")[:2])


def _may_lose_names(path: str) -> bool:
    """Whether an error there may hide a pool, a team or a tier that other keys rightly name."""
    first, *rest = path.split(".")
    return first == "pools" or (first in ("teams", "tiers") and len(rest) <= 1)


def _under(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix and path else prefix or path


def _unreadable(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file; `gpufair init` writes one"
    if isinstance(error, IsADirectoryError):
        return "is a folder; give the policy file in it"
    if isinstance(error, PermissionError):
        return "may not be read by this user"
    return f"cannot be read: {error}"
