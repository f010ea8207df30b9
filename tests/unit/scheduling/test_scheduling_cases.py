"""The decision cases that state what must be decided, as far as no preemption or reservation is in them."""

from __future__ import annotations

import cases
import pytest

NAMES = [
    "backfill-does-not-bury-a-single-run",
    "borrow-idle",
    "fragmented",
    "reserve-held",
    "second-choice-pool",
    "surplus-by-weight",
    "waiting-beats-tier",
]


@pytest.mark.parametrize("name", NAMES)
def test_case(name: str):
    path = cases.SHARED / f"{name}.yaml"
    if not path.exists():
        pytest.skip(f"{path} is not there: the shared cases are not part of this repository")
    assert cases.read(path).differences() == []
