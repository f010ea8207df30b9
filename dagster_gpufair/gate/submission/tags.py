"""The tags that carry a request: what users write, what we write back, and the helper for both.

Users set these on jobs, assets or runs; every value is text. `parse_ask` reads them, `gpu_tags` writes
them, and both hold to the same rules, so what one builds the other accepts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dagster_gpufair.policy.models import KINDS
from dagster_gpufair.policy.problems import shown, unknown
from dagster_gpufair.policy.quantities import (
    ONE_GPU,
    format_gpus,
    parse_duration,
    parse_gpus,
    written_duration,
)

PREFIX = "gpufair/"
TEAM = "gpufair/team"
PROJECT = "gpufair/project"
TIER = "gpufair/tier"
POOL = "gpufair/pool"
GPUS = "gpufair/gpus"
GPUS_PER_NODE = "gpufair/gpus_per_node"
KIND = "gpufair/kind"
MAX_DURATION = "gpufair/max_duration"
CPUS = "gpufair/cpus"
MEMORY_GIB = "gpufair/memory_gib"
HOLD = "gpufair/hold"
USER_TAGS = (
    TEAM,
    PROJECT,
    TIER,
    POOL,
    GPUS,
    GPUS_PER_NODE,
    KIND,
    MAX_DURATION,
    CPUS,
    MEMORY_GIB,
    HOLD,
)

STATE = "gpufair/state"
REASON = "gpufair/reason"
WHY = "gpufair/why"
STATE_TAGS = (STATE, REASON, WHY)
"""Written by us on every GPU run; what a run brings along (from a re-execution) is overwritten."""
CONTINUES = "gpufair/continues"
"""On a run that goes on with what was stopped: the request, and how often it was stopped."""
HIDDEN = "gpufair/hidden"
"""On a run that is stopped for others: the tags that are hidden from Dagster meanwhile."""
_OURS = (*STATE_TAGS, CONTINUES, HIDDEN)
LONGEST_WHY = 200
MARKS = (GPUS, STATE)
"""Every GPU run in Dagster's queue bears one of these; no other daemon than ours starts what does."""

K8S_CONFIG = "dagster-k8s/config"
_K8S_GPU = "nvidia.com/gpu"

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}", re.ASCII)
_WHOLE = re.compile(r"\d{1,7}", re.ASCII)
_AMOUNT = re.compile(r"\d{1,7}(\.\d{1,3})?", re.ASCII)
_DECIMAL = re.compile(r"\d{1,7}(\.\d{1,20})?", re.ASCII)


class InvalidAsk(ValueError):
    """Tags that do not make a request; the message says which one, and what would be right."""


@dataclass(frozen=True)
class RunTags:
    """What a run's tags ask for. GPUs in thousandths; ``None`` is left to the policy.

    ``cpus`` and ``memory_gib`` are what it declares to use beside them.
    """

    gpus: int
    min_gpus: int | None = None
    gpus_per_node: int | None = None
    pools: tuple[str, ...] = ()
    team: str | None = None
    project: str | None = None
    tier: str | None = None
    kind: str | None = None
    max_duration: timedelta | None = None
    cpus: float = 0.0
    memory_gib: float = 0.0


def state_tags(state: str, reason: str, why: str) -> dict[str, str]:
    """What we write on a run: its state, a short reason, and why in a sentence of bounded length."""
    return {STATE: state, REASON: reason, WHY: shortened(why, LONGEST_WHY)}


def shortened(text: str, most: int) -> str:
    """The text in so many characters at most."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def asks_for_gpus(tags: Mapping[str, str]) -> bool:
    """Whether a run is ours to gate. A misspelt tag of ours counts, so that it cannot slip through."""
    if GPUS in tags or any(_is_unknown(key) for key in tags):
        return True
    return K8S_CONFIG in tags and _kubernetes_gpus(tags) != 0


def parse_ask(tags: Mapping[str, str]) -> RunTags:
    """Read a run's tags.

    Raises:
        InvalidAsk: for a tag that is unknown, cannot be read, or contradicts another.
    """
    for key in tags:
        if _is_unknown(key):
            raise InvalidAsk(unknown("tag", key, USER_TAGS))
    hold = tags.get(HOLD, "run")
    if hold == "step":
        raise InvalidAsk(
            f"{HOLD} is 'step', which is not there yet: this version holds GPUs for the whole run. Remove "
            "the tag, or set it to 'run'"
        )
    if hold != "run":
        raise InvalidAsk(f"{HOLD} is {shown(hold)}; write run, or remove the tag")
    least, most = _gpus(tags)
    per_node = _gpus_per_node(tags.get(GPUS_PER_NODE), most, least)
    kind = tags.get(KIND)
    if kind is not None and kind not in KINDS:
        raise InvalidAsk(f"{KIND}: {unknown('kind', kind, KINDS)}")
    return RunTags(
        gpus=most,
        min_gpus=least,
        gpus_per_node=per_node,
        pools=_pools(tags.get(POOL)),
        team=_name(tags, TEAM),
        project=_name(tags, PROJECT),
        tier=_name(tags, TIER),
        kind=kind,
        max_duration=_max_duration(tags.get(MAX_DURATION)),
        cpus=_amount(tags, CPUS),
        memory_gib=_amount(tags, MEMORY_GIB),
    )


def tags_of_assets(
    by_asset: Mapping[str, Mapping[str, str]], run_tags: Mapping[str, str]
) -> dict[str, str]:
    """Tags of ours that a run has from its assets, besides those it bears itself.

    The assets of a run share its GPUs, CPUs and memory, so it asks for the most that one of them does;
    on everything else that the run leaves open, those that say something must agree.

    Args:
        by_asset: the definition tags of each asset.
        run_tags: the run's own, which go before what its assets say.

    Raises:
        InvalidAsk: when two assets disagree.
    """
    merged: dict[str, str] = {}
    said_by: dict[str, str] = {}
    for asset, tags in by_asset.items():
        for key, value in tags.items():
            if not key.startswith(PREFIX) or key in STATE_TAGS or key in run_tags:
                continue
            before = merged.setdefault(key, value)
            said_by.setdefault(key, asset)
            if before == value:
                continue
            amount = _AMOUNTS.get(key)
            if amount is None:
                raise InvalidAsk(
                    f"asset {shown(said_by[key])} has {key} {shown(before)} and asset {shown(asset)} has "
                    f"{shown(value)}; let them agree, materialize them apart, or tag the run"
                )
            if amount(tags) > amount(merged):
                merged[key], said_by[key] = value, asset
    return merged


def gpu_tags(
    gpus: int | float | str,
    *,
    pool: str | Sequence[str] | None = None,
    team: str | None = None,
    tier: str | None = None,
    project: str | None = None,
    kind: str | None = None,
    gpus_per_node: int | None = None,
    max_duration: str | timedelta | None = None,
    cpus: int | float | None = None,
    memory_gib: int | float | None = None,
) -> dict[str, str]:
    """The tags of a job that needs GPUs, checked where the job is defined.

    Args:
        gpus: how many: ``8``, ``0.5``, or ``"4-8"`` for eight, or at least four.
        pool: one pool, or several in order of liking.
        team: only needed where the policy does not map the code location to a team.
        max_duration: the longest it runs, ``"2h"``; it is stopped then. A run whose end is known may start
            sooner: before a reservation or a window begins.
        cpus: CPU cores it uses, which count towards its team's ceiling; so does ``memory_gib``.

    Raises:
        InvalidAsk: for values that would be refused when the run is submitted.
    """
    written: dict[str, Any] = {
        GPUS: gpus,
        POOL: pool if pool is None or isinstance(pool, str) else ",".join(pool),
        TEAM: team,
        TIER: tier,
        PROJECT: project,
        KIND: kind,
        GPUS_PER_NODE: gpus_per_node,
        MAX_DURATION: written_duration(max_duration)
        if isinstance(max_duration, timedelta)
        else max_duration,
        CPUS: cpus,
        MEMORY_GIB: memory_gib,
    }
    tags = {key: str(value) for key, value in written.items() if value is not None}
    parse_ask(tags)
    return tags


def gpus_of(tags: Mapping[str, str]) -> int:
    """How many GPUs a run asks for, in thousandths, whatever else its tags say.

    Raises:
        InvalidAsk: when that cannot be read.
    """
    return _gpus(tags)[1]


def _is_unknown(key: str) -> bool:
    return key.startswith(PREFIX) and key not in USER_TAGS and key not in _OURS


def _gpus(tags: Mapping[str, str]) -> tuple[int | None, int]:
    """(min_gpus, gpus) in thousandths."""
    text = tags.get(GPUS)
    if text is None and K8S_CONFIG not in tags:
        raise InvalidAsk(f"{GPUS} is missing; write 8, 0.5, or 4-8 for at least four")
    if text is None:
        count = _kubernetes_gpus(tags)
        if not count:
            raise InvalidAsk(
                f"the GPU limit in {K8S_CONFIG} is not a whole number from 1; "
                f"correct it, or set {GPUS}"
            )
        return None, count * ONE_GPU
    low, dash, high = text.strip().partition("-")
    if not _AMOUNT.fullmatch(low) or (dash and not _AMOUNT.fullmatch(high)):
        raise _not_gpus(text)
    try:
        amounts = [parse_gpus(part) for part in ((low, high) if dash else (low,))]
    except ValueError:
        raise _not_gpus(text) from None
    for amount in amounts:
        if amount == 0:
            raise InvalidAsk(f"{GPUS} is {shown(text)}: a run without GPUs has no such tag")
        if amount > ONE_GPU and amount % ONE_GPU:
            raise InvalidAsk(
                f"{GPUS} is {shown(text)}: ask for whole GPUs, or for a part of one (0.5)"
            )
    if dash and amounts[0] > amounts[1]:
        raise InvalidAsk(
            f"{GPUS} is {shown(text)}: the least comes first, "
            f"{format_gpus(amounts[1])}-{format_gpus(amounts[0])}"
        )
    least = amounts[0] if dash and amounts[0] < amounts[1] else None
    return least, amounts[-1]


def _not_gpus(text: str) -> InvalidAsk:
    return InvalidAsk(
        f"{GPUS} is {shown(text)}, which is no number of GPUs; write 8, 0.5, or 4-8 for at least four"
    )


def _gpus_per_node(text: str | None, gpus: int, min_gpus: int | None) -> int | None:
    if text is None:
        return None
    if not _WHOLE.fullmatch(text.strip()) or int(text) == 0:
        raise InvalidAsk(f"{GPUS_PER_NODE} is {shown(text)}, which is no whole number from 1")
    per_node = int(text) * ONE_GPU
    for amount in (gpus, min_gpus):
        if amount is not None and amount % per_node:
            raise InvalidAsk(
                f"{GPUS_PER_NODE} is {shown(text)} and {GPUS} asks for {format_gpus(amount)}, "
                "which does not divide into such nodes; make one a multiple of the other"
            )
    return per_node


def _pools(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    pools = tuple(part.strip() for part in text.split(","))
    for pool in pools:
        if not _NAME.fullmatch(pool):
            raise InvalidAsk(f"{POOL} is {shown(text)}; write one pool, or several as h100,a100")
    if len(set(pools)) < len(pools):
        raise InvalidAsk(f"{POOL} is {shown(text)}, which names a pool twice")
    return pools


def _name(tags: Mapping[str, str], key: str) -> str | None:
    name = tags.get(key)
    if name is not None and not _NAME.fullmatch(name):
        raise InvalidAsk(
            f"{key} is {shown(name)}; a name has letters, digits, '_', '-' and '.', at most 63"
        )
    return name


def _max_duration(text: str | None) -> timedelta | None:
    if text is None:
        return None
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise InvalidAsk(f"{MAX_DURATION}: {error}") from None
    if not duration:
        raise InvalidAsk(f"{MAX_DURATION} is {shown(text)}; a run needs some time")
    return duration


def _amount(tags: Mapping[str, str], key: str) -> float:
    text = tags.get(key)
    if text is None:
        return 0.0
    if not _DECIMAL.fullmatch(text.strip()) or not float(text):
        raise InvalidAsk(f"{key} is {shown(text)}, which is no number above 0; write 16, or 0.5")
    return float(text)


_AMOUNTS: Mapping[str, Callable[[Mapping[str, str]], float]] = {
    GPUS: lambda tags: _gpus(tags)[1],
    CPUS: lambda tags: _amount(tags, CPUS),
    MEMORY_GIB: lambda tags: _amount(tags, MEMORY_GIB),
}
"""Of what the assets of a run share, it asks for the most."""


def _kubernetes_gpus(tags: Mapping[str, str]) -> int | None:
    """Whole GPUs in the limits of the run's container; 0 if it has none, None if they cannot be read."""
    try:
        config = json.loads(tags[K8S_CONFIG])
    except (ValueError, RecursionError):
        return 0  # Dagster says what is wrong with it when the run is launched
    limits: Any = config
    for keys in (("container_config", "containerConfig"), ("resources",), ("limits",)):
        if not isinstance(limits, Mapping):
            return 0
        limits = next((limits[key] for key in keys if key in limits), None)
    if not isinstance(limits, Mapping) or _K8S_GPU not in limits:
        return 0
    count = str(limits[_K8S_GPU])
    return int(count) if _WHOLE.fullmatch(count) else None
