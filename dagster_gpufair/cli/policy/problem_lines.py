"""What is wrong with a policy, or worth knowing of it, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_gpufair.cli.output.text import sentence
from dagster_gpufair.policy.problems import Problem, problem_lines


def lines_of(problems: Sequence[Problem]) -> list[str]:
    return [sentence(line) for line in problem_lines(problems)]


def problems_json(problems: Sequence[Problem]) -> list[dict[str, str]]:
    return [
        {"path": problem.path, "message": problem.message, "severity": problem.severity}
        for problem in problems
    ]
