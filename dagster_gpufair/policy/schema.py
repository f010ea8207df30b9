"""The policy file's JSON Schema, with which editors complete and check it."""

from __future__ import annotations

from typing import Any

from dagster_gpufair.policy.models import DEFAULT_TIERS, Policy


def json_schema() -> dict[str, Any]:
    """A JSON Schema (2020-12) of the file; the rules across keys are not in it."""
    schema = Policy.model_json_schema(by_alias=True)
    sections = schema["properties"]
    # Shown as the file may have it: a tier that is null is removed.
    row = sections["tiers"]["additionalProperties"]
    sections["tiers"] |= {
        "additionalProperties": {"anyOf": [row, {"type": "null"}]},
        "default": DEFAULT_TIERS,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "gpufair policy",
    }
