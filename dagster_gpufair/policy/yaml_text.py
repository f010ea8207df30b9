"""YAML as plain values, read strictly: what YAML quietly reads as something else is an error.

Duplicate keys, keys that are not text, numbers in octal or base 60, tags, endless aliases: in a
file that decides who gets which GPU, none of them may pass in silence.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from dagster_gpufair.policy.problems import PolicyError, Problem, dotted, shown

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

LARGEST_TEXT = 1024 * 1024
_MOST_VALUES = 100_000
_DEEPEST = 32
_TOO_DEEP = f"is nested deeper than {_DEEPEST} levels"

_NOT_TEXT = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLAIN_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_LARGEST_INTEGER = 10**15

_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_READS_AS = {
    f"{_TAG}str": "text",
    f"{_TAG}int": "a number",
    f"{_TAG}float": "a number",
    f"{_TAG}bool": "true or false",
    f"{_TAG}null": "nothing",
    f"{_TAG}timestamp": "a date",
    f"{_TAG}value": "a sign of YAML's own",
    _MERGE: "a sign of YAML's own",
}

# What the parsers say, and what its author can do about it.
_HINTS = (
    ("maximum nesting depth", _TOO_DEEP),
    ("mapping values are not allowed", "a ':' that cannot be here: indent it right, or quote it"),
    ("could not find expected ':'", "a key without its ':'"),
    ("undefined alias", "a *name that no &name stands before"),
    ("another document", "a second document; delete what follows the second '---'"),
    ("quoted scalar", "a quote that is not closed"),
    ("flow ", "a bracket or a comma is missing"),
    ("block ", "the indentation does not match the lines above"),
)


def read_yaml(text: str | bytes, source: str = "gpufair.yaml") -> tuple[Any, list[Problem]]:
    """The values of a YAML text, and what is wrong with how it is written.

    The values are fresh dicts with text keys, lists and scalars, aliases written out, also where
    there are problems, so that further ones can be found. An empty text is ``None``.

    Raises:
        PolicyError: if it cannot be read at all: not UTF-8, over 1 MiB, not YAML, nested too deeply
            or with too many values.
    """
    text = decode(text, source)
    odd = _NOT_TEXT.search(text)
    if odd:
        start = text.rfind("\n", 0, odd.start()) + 1
        line = text.count("\n", 0, start) + 1
        raise _unreadable(
            source,
            f"a character that is not text (U+{ord(odd.group()):04X}); delete it",
            f"line {line}, column {odd.start() - start + 1}",
        )
    try:
        _refuse_deep_nesting(text, source)
        return _values(text, source)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(source, error, text) from None
    except yaml.YAMLError as error:
        raise _unreadable(source, f"is not YAML: {error}") from None


def decode(text: str | bytes, source: str = "gpufair.yaml") -> str:
    """The text of a file's bytes, without a byte order mark.

    Raises:
        PolicyError: if it is over 1 MiB or not UTF-8.
    """
    if len(text) > LARGEST_TEXT:
        raise _unreadable(
            source, "is larger than 1 MiB, the most that a policy may have; is it the right file?"
        )
    if isinstance(text, str):
        return text.removeprefix("\ufeff")
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _unreadable(source, "is UTF-16 text; save it as UTF-8")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        byte = f"0x{text[error.start]:02x}"
        raise _unreadable(
            source, f"is not UTF-8 text (byte {byte}); save it as UTF-8", f"line {line}"
        ) from None


def _refuse_deep_nesting(text: str, source: str) -> None:
    """Before nodes are made of it: older libyaml overflows the stack over them and ends Python."""
    depth = 0
    for event in yaml.parse(text, Loader=_SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            raise _unreadable(source, _TOO_DEEP, _place(event.start_mark))


def _values(text: str, source: str) -> tuple[Any, list[Problem]]:
    loader = _SafeLoader(text)
    try:
        node = loader.get_single_node()
        reading = _Reading(loader, source)
        return (None if node is None else reading.value(node, ())), reading.problems
    finally:
        loader.dispose()


def _unreadable(source: str, message: str, path: str = "") -> PolicyError:
    return PolicyError([Problem(path, message)], source)


def _syntax_error(source: str, error: yaml.MarkedYAMLError, text: str) -> PolicyError:
    mark = error.problem_mark or error.context_mark
    said = " ".join(part for part in (error.problem, error.context) if part)
    if mark is None:
        return _unreadable(source, f"is not YAML: {said}")
    where = _place(mark)
    lines = text.splitlines()
    character = lines[mark.line][mark.column : mark.column + 1] if mark.line < len(lines) else ""
    if character == "\t":
        return _unreadable(source, "a tab; indent with spaces", where)
    if "cannot start any token" in said:
        return _unreadable(source, f"a value that begins with {character} must be quoted", where)
    hint = next((hint for sign, hint in _HINTS if sign in said), None)
    return _unreadable(source, hint or f"is not YAML: {said}", where)


def _place(mark: Any) -> str:
    """Where one of the parser's marks is, its counts from 0; it has its own type in each parser."""
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""


class _Reading:
    """One walk over the nodes of a text."""

    def __init__(self, loader: _SafeLoader, source: str) -> None:
        self.problems: list[Problem] = []
        self._loader = loader
        self._source = source
        self._values = 0

    def value(self, node: yaml.Node, path: tuple[str | int, ...]) -> Any:
        """The value of ``node``, which stands at ``path``."""
        self._values += 1
        if self._values > _MOST_VALUES:
            message = f"has more than {_MOST_VALUES} values, its *aliases written out"
            raise _unreadable(self._source, message)
        if len(path) > _DEEPEST:
            # Only an alias that holds itself comes here.
            raise _unreadable(self._source, _TOO_DEEP, dotted(*path[:4]))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            self._problem(path, f"the YAML tag {_short(node.tag)} has no place here; delete it")
        if isinstance(node, yaml.SequenceNode):
            return [self.value(part, (*path, index)) for index, part in enumerate(node.value)]
        return self._mapping(node, path)

    def _mapping(self, node: yaml.Node, path: tuple[str | int, ...]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                for other in self._merged(value_node, path):
                    merged = {**other, **merged}
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            line = key_node.start_mark.line + 1
            if key in lines:
                first = lines[key]
                where = f"in line {line}" if first == line else f"lines {first} and {line}"
                self._problem((*path, key), f"is there twice, {where}; keep one")
            lines.setdefault(key, line)
            values[key] = self.value(value_node, (*path, key))
        return {**merged, **values}

    def _merged(self, node: yaml.Node, path: tuple[str | int, ...]) -> list[dict[str, Any]]:
        """The mappings behind ``<<``; what is wrong inside them is said where they stand."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(source, yaml.MappingNode) for source in sources):
            self._problem((*path, "<<"), "takes an alias of a group of keys: <<: *name")
            return []
        known = len(self.problems)
        values = [self.value(source, (*path, "<<")) for source in sources]
        del self.problems[known:]
        return values

    def _key(self, node: yaml.Node, path: tuple[str | int, ...]) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._problem(path, f"line {node.start_mark.line + 1}: a key must be plain text")
            return None
        key: str = node.value
        if node.tag != f"{_TAG}str":
            reads_as = _READS_AS.get(node.tag, "something else")
            self._problem(
                (*path, key), f"YAML reads this key as {reads_as}; quote it: {shown(key)}"
            )
        return key

    def _scalar(self, node: yaml.ScalarNode, path: tuple[str | int, ...]) -> Any:
        written: str = node.value
        if node.tag not in _READS_AS:
            self._problem(path, f"the YAML tag {_short(node.tag)} has no place here; delete it")
            return written
        reads_as = _READS_AS[node.tag]
        try:
            value = self._loader.construct_object(node)
        except (ValueError, OverflowError, LookupError, AttributeError, yaml.YAMLError):
            self._problem(
                path, f"{shown(written)} cannot be read as {reads_as}; if it is text, quote it"
            )
            return written
        if isinstance(value, str) and _NOT_TEXT.search(value):
            self._problem(path, f"{shown(value)} holds characters that are not text")
        elif reads_as == "a number" and ":" in written:
            advice = "write a duration as 1h30m, text in quotes"
            self._problem(path, f"YAML reads {shown(written)} as {shown(value)}; {advice}")
        elif isinstance(value, float) and not math.isfinite(value):
            self._problem(path, f"{written} is no amount; write a number, or leave the key out")
        elif type(value) is int and not _PLAIN_INTEGER.fullmatch(written):
            self._problem(
                path, f"YAML reads {shown(written)} as {shown(value)}; write that instead"
            )
        elif type(value) is int and abs(value) > _LARGEST_INTEGER:
            self._problem(path, f"{shown(value)} is too large")
        return value

    def _problem(self, path: tuple[str | int, ...], message: str) -> None:
        self.problems.append(Problem(dotted(*path), message))


def _short(tag: str) -> str:
    """A tag as it is written: ``!!set``."""
    return shown(f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag)
