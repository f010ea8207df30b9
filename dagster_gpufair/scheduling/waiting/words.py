"""The parts that sentences about requests are made of, with real numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.quantities import ONE_GPU, format_gpus
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.model import Account, Lease, Request
from dagster_gpufair.scheduling.space.room import Room

RUN_ID_LENGTH = 36
MOST_NAMED = 4
"""A sentence names no more leases than this."""


def asked(request: Request, pool: str, room: Room) -> str:
    """``4 to 8 × h100 on one node``, ``8 × h100 on one node or 16 on whole nodes``."""
    most, *less = (_shape(request, gpus, room) for gpus in request.sizes)
    amount = format_gpus(request.gpus)
    if not less:
        return f"{amount} × {pool}{most}"
    least = format_gpus(request.sizes[-1])
    if less == [most]:
        return f"{least} to {amount} × {pool}{most}"
    return f"{least} × {pool}{less[0]} or {amount}{most}"


def free(policy: Policy, pool: str, room: Room, request: Request) -> str:
    """``h100 has 5 of 16 free, at most 4 on one node``."""
    away = policy.pools[pool].capacity - room.ready
    maintenance = f" ({format_gpus(away)} more are in maintenance)" if away else ""
    left = format_gpus(max(0, room.idle))
    spread = _in_parts(request, room) or _spread(request, room)
    return f"{pool} has {left} of {format_gpus(room.ready)} free{maintenance}{spread}"


def used(holding: Holding) -> str:
    """``nlp uses 6 of its 8``, ``vision uses 6: its 4 and 2 borrowed``."""
    quota = format_gpus(holding.quota)
    if not holding.quota:
        borrowed = f" and has borrowed {format_gpus(holding.use)}" if holding.use else ""
        return f"{holding} has no quota there{borrowed}"
    if holding.overage:
        overage = format_gpus(holding.overage)
        return f"{holding} uses {format_gpus(holding.use)}: its {quota} and {overage} borrowed"
    return f"{holding} uses {format_gpus(holding.use)} of its {quota}"


def had_of_late(holding: Holding) -> str:
    """``vision has borrowed 38 % of late, its part is 33 %``: its team as one, as its points have it."""
    team = holding.team
    return f"{team.account} has borrowed {team.had:.0%} of late, its part is {team.due:.0%}"


def held_back(keepers: Iterable[tuple[Account, int]]) -> str:
    """``4 are held back for red, 2 for green``."""
    (first, gpus), *others = keepers
    more = "".join(f", {part(gpus)} for {account}" for account, gpus in others)
    amount = part(gpus)
    return f"{amount} {'is' if amount == '1' else 'are'} held back for {first}{more}"


def part(gpus: int) -> str:
    """A part of GPUs that was computed, in hundredths: ``3.555`` → ``3.56``; what is less is still there."""
    return format_gpus(max(round(gpus, -1), 10) if gpus > 0 else gpus)


def in_policy(names: Iterable[str]) -> str:
    """``(it has a100, h100)``."""
    return f"(it has {', '.join(sorted(names))})"


def owner(request: Request) -> str:
    """``3f2a91c0 (nlp/pretrain, milestone, 8 GPUs)``."""
    account = Account(request.team, request.project)
    gpus = format_gpus(request.gpus)
    return (
        f"{short(request.id)} ({account}, {request.tier}, {gpus} GPU{'' if gpus == '1' else 's'})"
    )


def leases(held: Sequence[Lease]) -> str:
    """``3f2a91c0 (vision, 4 GPUs) and 90c1d4aa (vision, 2 GPUs)``."""
    named = [
        f"{short(lease.id)} ({Account(lease.team, lease.project)}, {format_gpus(lease.gpus)} GPUs)"
        for lease in sorted(held, key=lambda lease: (-lease.gpus, lease.id))
    ]
    if len(named) > MOST_NAMED:
        return f"{', '.join(named[:MOST_NAMED])} and {len(named) - MOST_NAMED} others"
    return " and ".join([", ".join(named[:-1]), named[-1]]) if len(named) > 1 else "".join(named)


def counted(gpus: int) -> str:
    """``4 are``, ``1 is``."""
    return f"{format_gpus(gpus)} {'is' if gpus == ONE_GPU else 'are'}"


def has(held: Sequence[Lease]) -> str:
    """What goes with `leases`."""
    return "has" if len(held) == 1 else "have"


def short(id: str) -> str:
    """The first eight characters of a run id, as Dagster shows it; other ids as they are."""
    return id[:8] if len(id) == RUN_ID_LENGTH else id


def _shape(request: Request, gpus: int, room: Room) -> str:
    """How so many GPUs lie on the nodes."""
    if not room.named or gpus <= ONE_GPU:
        return ""
    if request.gpus_per_node:
        return f", {format_gpus(request.gpus_per_node)} on each node"
    if gpus <= room.nodes.largest:
        return " on one node"
    return f" on whole nodes{' and one rest' if _has_rest(gpus, room) else ''}"


def _has_rest(gpus: int, room: Room) -> bool:
    """Whether whole nodes, the largest first, leave a rest that another node could give."""
    for size in sorted(room.nodes.sizes.values(), reverse=True):
        if gpus < size:
            return gpus > 0
        gpus -= size
    return False


def _in_parts(request: Request, room: Room) -> str:
    """What keeps enough free GPUs from being enough for the least it accepts: parts of cards."""
    least = request.sizes[-1]
    if least > room.idle or (room.named and least > ONE_GPU):
        return ""
    if room.could_place(least, request.gpus_per_node):
        return ""
    if least <= ONE_GPU:
        return f", but no card has {format_gpus(least)} free"
    return ", in parts of cards"


def _spread(request: Request, room: Room) -> str:
    """How what is free lies on the nodes, as far as it matters to the request."""
    least = request.sizes[-1]
    if not room.named or least <= ONE_GPU:
        return ""
    by_free = room.nodes.by_free
    if request.gpus_per_node:
        able = sum(1 for gpus, _ in by_free if gpus >= request.gpus_per_node)
        return f", {format_gpus(request.gpus_per_node)} or more on {_nodes(able)}"
    if least <= room.nodes.largest:
        most = max(0, by_free[-1][0]) if by_free else 0
        return f", at most {format_gpus(most)} on one node"
    idle = sum(1 for gpus, node in by_free if gpus == room.nodes.sizes[node])
    return f", {_nodes(idle, 'whole ')}"


def _nodes(count: int, kind: str = "") -> str:
    """``no node``, ``1 whole node``, ``2 nodes``."""
    return f"{count or 'no'} {kind}node{'' if count < 2 else 's'}"
