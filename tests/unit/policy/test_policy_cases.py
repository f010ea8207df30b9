"""The decision cases that come with the project's design hold sound policies."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_gpufair.policy.loading import policy_from
from dagster_gpufair.policy.yaml_text import read_yaml

_CASES = sorted((Path(__file__).parents[4] / "shared" / "cases").glob("*.yaml"))


@pytest.mark.skipif(not _CASES, reason="the shared cases are not beside this checkout")
@pytest.mark.parametrize("path", _CASES, ids=[path.stem for path in _CASES])
def test_the_policy_of_every_case_is_sound(path):
    case, written = read_yaml(path.read_bytes(), path.name)
    assert written == []
    assert policy_from(case["policy"], path.name, under="policy").teams
