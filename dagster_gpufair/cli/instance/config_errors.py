"""What is wrong with a ``dagster.yaml``, in a line that names the file, the key and how to fix it.

Dagster's own message lists every key that there is, in thousands of characters.
"""

from __future__ import annotations

import re
from pathlib import Path

from dagster_gpufair.cli.instance.dagster_internals import ConfigProblem, config_problems
from dagster_gpufair.cli.output.text import plain, sentence
from dagster_gpufair.policy.problems import did_you_mean, dotted, listed

_SHOWN = 5
_LONGEST = 200
_MANY = 8
"""Known keys that are still listed."""
_VARIABLE = re.compile(r'environment variable "([^"]+)" which is not set')
_SCALAR = re.compile(r'Value (".*?") of type .* is not valid for expected type "(\w+)"', re.DOTALL)


def in_short(error: Exception, file: Path, section: str = "") -> str:
    """The file, and for each problem the key and how to fix it.

    ``section`` is where in the file that stands which Dagster has checked: ``run_coordinator.config``.
    """
    problems = config_problems(error)
    # A missing key is often the misspelt one, which is told already.
    misspelt = {each.keys for each in problems if each.unknown is not None}
    told = [each for each in problems if each.missing is None or each.keys not in misspelt]
    lines = [_line(each, section) for each in told[:_SHOWN]] or [_first_line(error)]
    if len(told) > _SHOWN:
        lines.append(f"{len(told) - _SHOWN} more problems")
    return sentence(f"{file}: {'; '.join(lines)}")


def _line(problem: ConfigProblem, section: str) -> str:
    keys = (*section.split("."), *problem.keys) if section else problem.keys
    where = dotted(*keys)
    if problem.unknown is not None:
        hint = did_you_mean(problem.unknown, problem.known)
        if not hint and len(problem.known) <= _MANY:
            hint = f"known keys are {listed(problem.known)}"
        return f"unknown key `{dotted(*keys, problem.unknown)}`{'; ' + hint if hint else ''}"
    if problem.missing is not None:
        return f"key `{dotted(*keys, problem.missing)}` is missing"
    at = f"`{where}`: " if where else ""
    variable, scalar = _VARIABLE.search(problem.message), _SCALAR.search(problem.message)
    if variable:
        return f"{at}the environment variable {variable[1]} is not set"
    if scalar:
        return f"{at}{scalar[1]} is no {scalar[2]}"
    return f"{at}{_cut(problem.message)}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()]
    problem_mark = getattr(error, "problem_mark", None)
    if problem_mark is not None:
        at = f"line {problem_mark.line + 1}, column {problem_mark.column + 1}"
        return f"{at}: {getattr(error, 'problem', None) or lines[0]}"
    return _cut(lines[0].removeprefix("Failure condition: ")) if lines else type(error).__name__


def _cut(text: str) -> str:
    return plain(text.splitlines()[0], _LONGEST)
