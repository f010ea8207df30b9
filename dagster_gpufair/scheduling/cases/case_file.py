"""The file of a decision case as typed values, and what is wrong with one in its author's words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Annotated, Any, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from dagster_gpufair.policy.models import KINDS
from dagster_gpufair.policy.problems import Problem, did_you_mean, dotted, shown, unknown
from dagster_gpufair.policy.quantities import (
    ONE_GPU,
    format_gpus,
    parse_duration,
    parse_gpus,
    parse_moment,
)
from dagster_gpufair.scheduling.model import UNNAMED, Reason

REASONS: tuple[Reason, ...] = get_args(Reason)

_OFFSET = re.compile(r"([+-]?)((?:\d+(?:\.\d+)?[smhdw])+)", re.ASCII)
_MOST_PREEMPTED = 1_000_000
_LARGEST_AMOUNT = 1e12


def offset(value: Any) -> float | None:
    """The seconds of an offset from now (``-2h``, ``+5m``, ``0s``); None for anything else."""
    found = _OFFSET.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    seconds = parse_duration(found[2]).total_seconds()
    return -seconds if found[1] == "-" else seconds


def parse_time(value: Any, now: float) -> float:
    """A time in seconds since the epoch, from an offset or a moment with its zone.

    Raises:
        ValueError: for anything else.
    """
    seconds = offset(value)
    if seconds is not None:
        return now + seconds
    try:
        return parse_moment(value).timestamp()
    except ValueError:
        if isinstance(value, date):
            raise
        raise ValueError(
            f"{shown(value)} is not a time; write an offset from now (-2h, +5m, 0s), or date, time "
            "and zone: 2026-06-01T12:00:00Z"
        ) from None


def _time(value: Any, info: ValidationInfo) -> float:
    return parse_time(value, (info.context or {})["now"])


def _seconds(value: Any) -> float:
    return parse_duration(value).total_seconds()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {shown(value)}; quote it")
    if not value.strip():
        raise ValueError("is empty")
    return value


def _some_gpus(value: Any) -> int:
    gpus = parse_gpus(value)
    if not gpus:
        raise ValueError("must be above 0")
    return gpus


def _asked_gpus(value: Any) -> int:
    """As the tag of a run has it."""
    gpus = _some_gpus(value)
    if gpus > ONE_GPU and gpus % ONE_GPU:
        raise ValueError(f"is {format_gpus(gpus)}; ask for whole GPUs, or for a part of one (0.5)")
    return gpus


def _whole_gpus(value: Any) -> int:
    gpus = _some_gpus(value)
    if gpus % ONE_GPU:
        raise ValueError(f"is {format_gpus(gpus)}, which is no whole number from 1")
    return gpus


def _amount(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"must be a number, not {shown(value)}")
    if not 0 <= value <= _LARGEST_AMOUNT:
        raise ValueError(f"must be a number from 0 on, not {shown(value)}")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_PREEMPTED:
        raise ValueError(f"must be how many times, 0 or more, not {shown(value)}")
    return value


def _choice(what: str, known: Sequence[str]) -> BeforeValidator:
    def one_of_them(value: Any) -> Any:
        if value not in known:
            raise ValueError(unknown(what, _text(value), known))
        return value

    return BeforeValidator(one_of_them)


def _cards(value: Any) -> Any:
    """By node; of a pool without nodes, as one row."""
    rows = {UNNAMED: value} if isinstance(value, list) else value
    if not isinstance(rows, dict):
        raise ValueError(f"must be cards by node, such as {{n1: [[0, 0.5]]}}, not {shown(value)}")
    return {node if node == UNNAMED else _text(node): _row(row) for node, row in rows.items()}


def _row(value: Any) -> tuple[tuple[int, int], ...]:
    cards = [
        (card[0], _some_gpus(card[1]))
        for card in (value if isinstance(value, list) else ())
        if isinstance(card, list) and len(card) == 2 and type(card[0]) is int and card[0] >= 0
    ]
    if not cards or len(cards) != len(value):
        raise ValueError(
            "must be a list of cards, each with its number and how much of it is used "
            f"([[0, 1], [1, 0.5]]), not {shown(value)}"
        )
    if len({number for number, _ in cards}) < len(cards):
        raise ValueError(f"names a card twice: {shown(value)}")
    if any(gpus > ONE_GPU for _, gpus in cards):
        raise ValueError(f"uses more than 1 of a card: {shown(value)}")
    return tuple(cards)


def _amounts(by_node: Mapping[str, int]) -> str:
    """``n1 2, n2 0.5``."""
    return ", ".join(f"{node} {format_gpus(gpus)}".strip() for node, gpus in by_node.items())


Text = Annotated[str, BeforeValidator(_text)]
Time = Annotated[float, BeforeValidator(_time)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Gpus = Annotated[int, BeforeValidator(parse_gpus)]
SomeGpus = Annotated[int, BeforeValidator(_some_gpus)]
AskedGpus = Annotated[int, BeforeValidator(_asked_gpus)]
WholeGpus = Annotated[int, BeforeValidator(_whole_gpus)]
OnCards = Annotated[dict[str, tuple[tuple[int, int], ...]], BeforeValidator(_cards)]
Amount = Annotated[float, BeforeValidator(_amount)]
Count = Annotated[int, BeforeValidator(_count)]
Kind = Annotated[str, _choice("kind", KINDS)]
Waits = Annotated[str, _choice("reason", REASONS)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Row(_Part):
    """A key with nothing behind it (``running:``) means its default."""

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_the_default(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: part for key, part in value.items() if part is not None}
        return value


class LeaseRow(_Row):
    """One of ``running``. Its kind says what it is, and makes no difference any more."""

    id: Text
    team: Text
    project: Text | None = None
    tier: Text
    kind: Kind | None = None
    pool: Text
    gpus: SomeGpus
    node: Text | None = None
    nodes: dict[str, SomeGpus] = {}
    cards: OnCards = {}
    started: Time
    max_duration: Seconds | None = None
    source: Text | None = None
    preempted: Count = 0
    cpus: Amount = 0.0
    memory_gib: Amount = 0.0
    checkpointed: Time | None = None
    notice_until: Time | None = None
    notice_for: Text | None = None
    term_from: Time | None = None
    kept_until: Time | None = None

    @model_validator(mode="after")
    def _its_nodes_make_its_gpus(self) -> LeaseRow:
        if self.node is not None and self.nodes:
            raise ValueError("has node and nodes; keep one of them")
        on_nodes = sum(self.nodes.values())
        if self.nodes and on_nodes != self.gpus:
            raise ValueError(
                f"has {format_gpus(on_nodes)} on its nodes, and gpus is {format_gpus(self.gpus)}; "
                "let them agree"
            )
        return self

    @model_validator(mode="after")
    def _its_cards_make_its_gpus(self) -> LeaseRow:
        on_cards = self._on_cards
        if on_cards and on_cards != (dict(self._on_nodes) or on_cards):
            raise ValueError(
                f"has {_amounts(on_cards)} on its cards, and {_amounts(self._on_nodes)} on its nodes; "
                "let them agree"
            )
        if on_cards and sum(on_cards.values()) != self.gpus:
            raise ValueError(
                f"has {format_gpus(sum(on_cards.values()))} on its cards, and gpus is "
                f"{format_gpus(self.gpus)}; let them agree"
            )
        return self

    @property
    def placement(self) -> Mapping[str, int]:
        """GPUs by node; empty if it does not say."""
        on_cards = {node: gpus for node, gpus in self._on_cards.items() if node != UNNAMED}
        return self._on_nodes or on_cards

    @property
    def _on_nodes(self) -> Mapping[str, int]:
        return self.nodes if self.node is None else {self.node: self.gpus}

    @property
    def _on_cards(self) -> dict[str, int]:
        return {node: sum(gpus for _, gpus in cards) for node, cards in self.cards.items()}


class PromisedRow(_Row):
    """What is kept for a request. Without nodes, it is all that the request asks for."""

    pool: Text
    nodes: dict[str, SomeGpus] = {}


class RequestRow(_Row):
    """One of ``queued``. Amounts that no run may ask for are errors: no policy change leaves them behind."""

    id: Text
    team: Text
    project: Text | None = None
    tier: Text
    kind: Kind | None = None
    pool: Text | None = None
    pools: list[Text] | None = None
    gpus: AskedGpus
    min_gpus: AskedGpus | None = None
    gpus_per_node: WholeGpus | None = None
    submitted: Time
    max_duration: Seconds | None = None
    source: Text | None = None
    preempted: Count = 0
    cpus: Amount = 0.0
    memory_gib: Amount = 0.0
    priority: int = 0
    promised: PromisedRow | None = None
    rejected: bool = False

    @model_validator(mode="after")
    def _its_amounts_agree(self) -> RequestRow:
        if (self.pool is None) == (not self.pools):
            raise ValueError("needs pool: a name, or pools: a list of names in order of liking")
        if self.min_gpus is not None and self.min_gpus > self.gpus:
            least, most = format_gpus(self.min_gpus), format_gpus(self.gpus)
            raise ValueError(f"min_gpus is {least}, and gpus is {most}; it is at most that")
        if self.promised is not None and self.promised.nodes:
            promised = sum(self.promised.nodes.values())
            if not (self.min_gpus or self.gpus) <= promised <= self.gpus:
                raise ValueError(
                    f"was promised {format_gpus(promised)} on its nodes, and asks for "
                    f"{format_gpus(self.gpus)}; let them agree"
                )
        return self

    @property
    def liking(self) -> tuple[str, ...]:
        """Its pools in order of liking."""
        return tuple(self.pools or ()) if self.pool is None else (self.pool,)


class Decision(_Part):
    """What must be decided. A key that is absent is not compared; an empty one means none."""

    start: list[Text] | None = None
    preempt: dict[str, list[Text]] | None = None
    wait: dict[str, Waits] | None = None
    use: dict[str, dict[str, Gpus]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _says_something(cls, value: Any) -> Any:
        nothing = (
            [key for key, part in value.items() if part is None] if isinstance(value, dict) else []
        )
        if nothing:
            raise ValueError(
                f"{nothing[0]} has nothing behind it; write {{}} or [] for none, or leave it out"
            )
        return value


class Expectation(Decision):
    """What must be decided now, and in the pass that is made at once ``again`` when that is carried out."""

    again: Decision | None = None


class CaseFile(_Row):
    """The whole file, but for what the policy says in itself."""

    name: Text = ""
    policy: Any
    now: Any = None
    running: list[LeaseRow] = []
    queued: list[RequestRow] = []
    used: dict[str, dict[str, Amount]] = {}
    cordoned: dict[str, list[Text]] = {}
    blocked: dict[str, Waits] = {}
    expect: Expectation | None = None


_SECTIONS: Mapping[str, type[BaseModel]] = {
    "running": LeaseRow,
    "queued": RequestRow,
    "promised": PromisedRow,
    "expect": Expectation,
}


def worded(error: ValidationError) -> list[Problem]:
    """One problem for each error, at the path of its key."""
    return [
        Problem(dotted(*detail["loc"]), _message(detail))
        for detail in error.errors(include_url=False)
    ]


def _message(detail: Mapping[str, Any]) -> str:
    kind, value = detail["type"], shown(detail.get("input"))
    if kind == "extra_forbidden":
        return _unknown_key(detail["loc"])
    if kind == "missing":
        return "is missing"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind == "list_type":
        return f"must be a list, such as [a, b], not {value}"
    return f"must be a group of keys (key: value), not {value}"


def _unknown_key(where: Sequence[str | int]) -> str:
    section = next((part for part in reversed(where[:-1]) if isinstance(part, str)), "")
    known = list(_SECTIONS.get(section, CaseFile).model_fields)
    hint = did_you_mean(str(where[-1]), known)
    return f"unknown key; {hint}" if hint else f"unknown key (known: {', '.join(known)})"
