"""The soak, in a short form: see README.md beside this file."""

from __future__ import annotations

import pytest
from run_soak import soak


@pytest.mark.parametrize("postgres", [False, True], ids=["sqlite", "postgres"])
def test_nothing_is_given_twice_and_nothing_lost(postgres: bool) -> None:
    verdict = soak(runs=12, kills=8, seed=7, postgres=postgres, say=print)

    print(verdict)
    assert verdict.wrong == []
