"""What the demo runs: found in a checkout, and in a package that was installed from a wheel."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import pytest

import dagster_gpufair
from dagster_gpufair.cli.demo import home as demo_home
from dagster_gpufair.cli.demo.home import find_example, prepared_home

CHECKOUT = Path(dagster_gpufair.__file__).resolve().parent.parent


def test_in_a_checkout_the_example_lies_beside_the_package() -> None:
    example = find_example()
    assert example.root == CHECKOUT
    assert set(example.modules) == {"nlp", "vision", "platform"}


def test_a_wheel_has_the_example_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "dagster_gpufair"
    shutil.copytree(CHECKOUT / "definitions", package / "example" / "definitions")
    shutil.copy(CHECKOUT / "workspace.yaml", package / "example")
    monkeypatch.setattr(dagster_gpufair, "__file__", str(package / "__init__.py"))
    assert find_example().root == package / "example"


def test_without_a_web_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_home, "find_spec", lambda _: None)
    with pytest.raises(click.ClickException, match=r"pip install 'dagster-gpufair\[demo\]'"):
        find_example()


def test_who_looks_on_changes_a_copy_of_the_policy() -> None:
    example = find_example()
    with prepared_home(None, example) as home:
        assert home.policy.parent == home.folder
        assert home.policy.read_text() == example.policy.read_text()
        assert str(home.policy) in (home.folder / "dagster.yaml").read_text()
