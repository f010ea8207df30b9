"""The policy file's JSON Schema, with which editors complete and check it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from dagster_gpufair.policy import models
from dagster_gpufair.policy.models import DEFAULT_TIERS, Policy


def json_schema() -> dict[str, Any]:
    """A JSON Schema (2020-12) of the file; the rules across keys are not in it."""
    schema = Policy.model_json_schema(by_alias=True)
    for section, field, text in _texts_under_fields():
        properties = schema["$defs"].get(section, schema)["properties"]
        key = getattr(models, section).model_fields[field].alias or field
        properties[key] = dict(sorted({**properties[key], "description": text}.items()))
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


def _texts_under_fields() -> Iterator[tuple[str, str, str]]:
    """Section, field and text. Pydantic can read them too, but does so whenever a section is imported."""
    for section in ast.parse(inspect.getsource(models)).body:
        if not isinstance(section, ast.ClassDef):
            continue
        for above, below in pairwise(section.body):
            match above, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=field)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    yield section.name, field, inspect.cleandoc(text)
