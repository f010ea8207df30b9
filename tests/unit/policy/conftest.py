from __future__ import annotations

from collections.abc import Callable

import pytest

from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.policy.problems import PolicyError

BASE = """
pools:
  h100: {nodes: {h1: 8, h2: 8}}
  t4: {gpus: 16}
"""


@pytest.fixture
def errors_in() -> Callable[[str | bytes], list[tuple[str, str]]]:
    """The problems of a text as (path, message); none for a policy that can take effect."""

    def find(text: str | bytes) -> list[tuple[str, str]]:
        try:
            parse_policy(text)
        except PolicyError as error:
            assert error.problems
            assert all(problem.severity == "error" for problem in error.problems)
            return [(problem.path, problem.message) for problem in error.problems]
        return []

    return find


@pytest.fixture
def with_pools() -> Callable[[str], str]:
    """A policy text with two pools, and one team with a quota unless the text has teams."""

    def complete(text: str) -> str:
        teams = "" if "teams:" in text else "teams: {nlp: {quota: {h100: 8}}}\n"
        return f"{BASE}{teams}{text}"

    return complete
