"""What the docs say of Dagster's versions agrees."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def test_the_images_to_deploy_have_the_dagster_that_its_own_tests_were_run_with() -> None:
    said = (DOCS / "compatibility.md").read_text()
    tested = re.search(r"those that Dagster (1\.\d+\.\d+) is published with", said)
    assert tested is not None

    named = re.findall(r"\b1\.\d+\.\d+\b", (DOCS / "deploying.md").read_text())

    assert set(named) == {tested[1]}
