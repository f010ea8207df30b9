"""The policy that a new installation starts from: small, commented, meant to be edited."""

from __future__ import annotations

from importlib.resources import files


def starter_text() -> str:
    """The starter policy as YAML with comments."""
    return files("dagster_gpufair.policy").joinpath("starter.yaml").read_text(encoding="utf-8")
