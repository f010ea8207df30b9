"""The README of the decision: from each reason one hop to the rule, and no file that is not there."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import get_args

import dagster_gpufair.scheduling as package
from dagster_gpufair.scheduling.model import Reason

FOLDER = Path(package.__file__).parent
TEXT = (FOLDER / "README.md").read_text()
RULES = re.findall(r"`(\w+)\.(\w+)` in `([\w/]+)`", TEXT)


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def test_every_reason_has_its_rule():
    table = section("From a reason to its rule")
    assert set(get_args(Reason)) <= set(re.findall(r"`(\w+)`", table))
    rows = [row for row in table.splitlines() if row.startswith("| ") and "---" not in row][1:]
    assert all(re.search(r"`\w+\.\w+` in `[\w/]+` \|$", row) for row in rows)


def test_every_rule_is_where_it_is_said_to_be():
    assert RULES
    for owner, name, where in RULES:
        module = import_module(f"{package.__name__}.{where.replace('/', '.')}")
        kind = getattr(module, owner)
        assert hasattr(kind, name) or name in kind.__annotations__


def test_every_file_answers_a_question():
    told = set(re.findall(r"`([\w/]+)`", section("Which file answers what")))
    files = {
        str(path.relative_to(FOLDER).with_suffix(""))
        for path in FOLDER.rglob("*.py")
        if path.name != "__init__.py"
    }
    assert told == files
