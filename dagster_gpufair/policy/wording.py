"""What pydantic finds wrong with a policy, in the words of its author."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.problems import Problem, did_you_mean, dotted, shown

_PER_POOL = ("quota", "borrow_limit", "lend_limit")
_LANE = "fast_lane: {h100: {gpus: 2, max_gpus: 1, max_duration: 30m}}"
_KEYS = ("dict_type", "model_type", "model_attributes_type")


def worded(error: ValidationError) -> list[Problem]:
    """One problem for each error, at the path of its key."""
    return [
        Problem(dotted(*detail["loc"]), _message(detail))
        for detail in error.errors(include_url=False)
    ]


def _message(detail: Mapping[str, Any]) -> str:
    kind, where, value = detail["type"], detail["loc"], detail.get("input")
    context: Mapping[str, Any] = detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(where)
    if kind == "missing":
        return "is missing"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return _not_a_choice(context["expected"], value)
    if kind in _KEYS and where and where[-1] in _PER_POOL:
        return f"must say how many GPUs of which pool, such as {{h100: 8}}, not {shown(value)}"
    if kind in _KEYS and where and where[-1] == "nodes":
        return f"must say how many GPUs each node has, such as {{h1: 8, h2: 8}}, not {shown(value)}"
    if kind in _KEYS and where and where[0] == "fast_lane":
        return f"must say of which pool, such as {_LANE}, not {shown(value)}"
    if kind in _KEYS and "mode" in _keys_at(where):
        mode = "off" if value is False else "auto"
        return f"must be a group of keys: {where[-1]}: {{mode: {mode}}}"
    return f"must be {_wanted(kind, context)}, not {shown(value)}"


def _wanted(kind: str, context: Mapping[str, Any]) -> str:
    if kind in _KEYS:
        return "a group of keys (key: value)"
    if kind == "list_type":
        return "a list, such as [a, b]"
    if kind == "string_type":
        return "text in quotes"
    if kind.startswith("bool"):
        return "true or false"
    if kind.startswith("int"):
        return "a whole number"
    if kind == "greater_than":
        return f"above {context['gt']:g}"
    if kind == "greater_than_equal":
        return f"at least {context['ge']:g}"
    if kind == "less_than_equal":
        return f"at most {context['le']:.15g}"
    if kind.startswith("float") or kind == "finite_number":
        return "a number"
    return "something else"


def _not_a_choice(expected: str, value: Any) -> str:
    """``expected`` is pydantic's listing: ``'off', 'approval' or 'auto'``."""
    choices = expected.replace("'", "")
    hint = ""
    known = choices.replace(" or ", ", ").split(", ")
    if value in known:
        hint = "write it without quotes"
    elif isinstance(value, str):
        hint = did_you_mean(value, known)
    return f"must be {choices}, not {shown(value)}{'; ' + hint if hint else ''}"


def _unknown_key(where: Sequence[str | int]) -> str:
    known = _keys_at(where[:-1])
    if (
        where[0] == "pools"
        and where[2:-1] == ("preemption",)
        and where[-1] in _keys_at(where[2:-1])
    ):
        return f"is the same in all pools: write preemption: {{{where[-1]}: …}} for all"
    hint = did_you_mean(str(where[-1]), known)
    return f"unknown key; {hint}" if hint else f"unknown key (known: {', '.join(known)})"


def _keys_at(where: Sequence[str | int]) -> list[str]:
    """The keys that the file may have at a path."""
    at: Any = Policy
    for part in where:
        if isinstance(at, type) and issubclass(at, BaseModel):
            fields = {field.alias or name: field for name, field in at.model_fields.items()}
            at = fields[str(part)].annotation
        elif get_origin(at) in (dict, list):
            at = get_args(at)[-1]
        if NoneType in get_args(at):
            at = next(each for each in get_args(at) if each is not NoneType)
    if not (isinstance(at, type) and issubclass(at, BaseModel)):
        return []
    return [field.alias or name for name, field in at.model_fields.items()]
