"""The soak, in a short form: see README.md beside this file."""

from __future__ import annotations

from run_soak import soak


def test_nothing_is_given_twice_and_nothing_lost() -> None:
    verdict = soak(runs=12, kills=8, seed=7, postgres=True, say=print, preempts=True)

    print(verdict)
    assert verdict.wrong == []
