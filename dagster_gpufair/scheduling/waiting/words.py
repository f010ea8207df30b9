"""The parts that sentences about requests are made of, with real numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dagster_gpufair.policy.models import FastLane, Policy
from dagster_gpufair.policy.quantities import ONE_GPU, duration_in_words, format_gpus
from dagster_gpufair.scheduling.accounts.ceilings import Exceeded
from dagster_gpufair.scheduling.accounts.holding import Holding
from dagster_gpufair.scheduling.model import Account, Lease, Request
from dagster_gpufair.scheduling.space.room import Room

RUN_ID_LENGTH = 36
MOST_NAMED = 4
"""A sentence names no more leases than this."""
_DECLARED = {
    "cpus": "CPUs",
    "memory_gib": "GiB of memory",
    "gpu_memory_gib": "GiB of GPU memory",
}
"""What ceilings are of, by their keys in the policy."""


def asked(request: Request, pool: str, room: Room) -> str:
    """``4 to 8 h100 on one node``, ``8 h100 on one node or 16 on whole nodes``."""
    most, *less = (_shape(request, gpus, room) for gpus in request.sizes)
    amount = format_gpus(request.gpus)
    if not less:
        return f"{amount} {pool}{most}"
    least = format_gpus(request.sizes[-1])
    if less == [most]:
        return f"{least} to {amount} {pool}{most}"
    return f"{least} {pool}{less[0]} or {amount}{most}"


def free(policy: Policy, pool: str, room: Room, request: Request) -> str:
    """``the most free on one node is 4 (5 of 16 in all)``, ``t4 has 5 of 8 free``."""
    away = policy.pools[pool].capacity - room.ready
    maintenance = f"{counted(away)} in maintenance" if away else ""
    if room.idle <= 0:
        return f"{pool} has no free GPUs{f', and {maintenance}' if away else ''}"
    amount = f"{format_gpus(room.idle)} of {format_gpus(room.ready)}"
    shape = _free_cards(request, room) or _free_on_nodes(request, room)
    if shape:
        return f"{shape} ({amount} in all{f'; {maintenance}' if away else ''})"
    return f"{pool} has {amount} free{f' ({maintenance})' if away else ''}"


def used(holding: Holding) -> str:
    """``nlp uses 6 of its quota of 8``, ``vision is 2 GPUs over its quota of 4``."""
    quota = format_gpus(holding.quota)
    if not holding.quota:
        borrowed = f" and has borrowed {format_gpus(holding.use)}" if holding.use else ""
        return f"{holding} has no quota of {holding.pool}{borrowed}"
    if holding.overage:
        return f"{holding} is {in_gpus(holding.overage)} over its quota of {quota}"
    use = format_gpus(holding.use) if holding.use else "none"
    return f"{holding} uses {use} of its quota of {quota}"


def borrow_limit(holding: Holding) -> str:
    """``nlp has reached its borrow limit: it uses its quota of 8 and 4 of 4 borrowed``."""
    limit = holding.borrow_limit or 0
    borrowed, most = format_gpus(holding.overage), format_gpus(limit)
    if holding.overage < limit:
        return f"{used(holding)}, and may borrow {most} in all"
    quota = f"its quota of {format_gpus(holding.quota)} and " if holding.quota else ""
    return f"{holding} has reached its borrow limit: it uses {quota}{borrowed} of {most} borrowed"


def recent_borrowing(holding: Holding) -> str:
    """``vision has 38 % of recent borrowing and a fair share of 33 %``: its team as one, as in its points."""
    team = holding.team
    had, due = 100 * team.had, 100 * team.due
    return f"{team.account} has {had:.0f} % of recent borrowing and a fair share of {due:.0f} %"


def ceiling(team: str, exceeded: Exceeded) -> str:
    """``vision has a ceiling of 64 CPUs``."""
    return f"{team} has a ceiling of {exceeded.most:g} {_DECLARED[exceeded.what]}"


def ceiling_reached(team: str, exceeded: Exceeded) -> str:
    """``vision has a ceiling of 64 CPUs: its runs use 60, and this run needs 8``."""
    use = f"{exceeded.used:g}" if exceeded.used else "none"
    return f"{ceiling(team, exceeded)}: its runs use {use}, and this run needs {exceeded.asked:g}"


def fast_lane(left: int, lane: FastLane) -> str:
    """``2 are in the fast lane, for runs of at most 1 GPU and 30 min``."""
    most = f"{in_gpus(lane.max_gpus)} and {duration_in_words(lane.max_duration)}"
    return f"{counted(left)} in the fast lane, for runs of at most {most}"


def held_back(keepers: Iterable[tuple[Account, int]]) -> str:
    """``4 GPUs are held back for red, 2 for green``."""
    (first, gpus), *others = keepers
    more = "".join(f", {part(gpus)} for {account}" for account, gpus in others)
    amount = part(gpus)
    are = "GPU is" if amount == "1" else "GPUs are"
    return f"{amount} {are} held back for {first}{more}"


def part(gpus: int) -> str:
    """A part of GPUs that was computed, in hundredths: ``3.555`` → ``3.56``; what is less is still there."""
    return format_gpus(max(round(gpus, -1), 10) if gpus > 0 else gpus)


def owner(request: Request) -> str:
    """``3f2a91c0 (nlp/pretrain, milestone, 8 GPUs)``."""
    account = Account(request.team, request.project)
    return f"{short(request.id)} ({account}, {request.tier}, {in_gpus(request.gpus)})"


def leases(held: Sequence[Lease]) -> str:
    """``3f2a91c0 (vision, 4 GPUs) and 90c1d4aa (vision, 2 GPUs)``."""
    named = [
        f"{short(lease.id)} ({Account(lease.team, lease.project)}, {in_gpus(lease.gpus)})"
        for lease in sorted(held, key=lambda lease: (-lease.gpus, lease.id))
    ]
    if len(named) > MOST_NAMED:
        return f"{', '.join(named[:MOST_NAMED])} and {len(named) - MOST_NAMED} others"
    return " and ".join([", ".join(named[:-1]), named[-1]]) if len(named) > 1 else "".join(named)


def in_gpus(gpus: int) -> str:
    """``4 GPUs``, ``1 GPU``."""
    return f"{format_gpus(gpus)} GPU{'' if gpus == ONE_GPU else 's'}"


def counted(gpus: int, of: str = "") -> str:
    """``4 are``, ``1 is``, ``4 of the quota are``."""
    return f"{format_gpus(gpus)}{of} {'is' if gpus == ONE_GPU else 'are'}"


def stopped(held: Sequence[Lease]) -> str:
    """``3f2a91c0 (vision, 4 GPUs) is stopped``."""
    return f"{leases(held)} {'is' if len(held) == 1 else 'are'} stopped"


def in_at_most(seconds: float) -> str:
    """``in at most 5 min``; once that is over, ``at any moment``."""
    return f"in at most {duration_in_words(seconds)}" if seconds >= 1 else "at any moment"


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
    return f" on whole nodes{' and part of one more' if _has_rest(gpus, room) else ''}"


def _has_rest(gpus: int, room: Room) -> bool:
    """Whether whole nodes, the largest first, leave a rest that another node could give."""
    for size in sorted(room.nodes.sizes.values(), reverse=True):
        if gpus < size:
            return gpus > 0
        gpus -= size
    return False


def _free_cards(request: Request, room: Room) -> str:
    """What keeps enough free GPUs from being enough for the least it accepts: parts of cards."""
    least = request.sizes[-1]
    if least > room.idle or (room.named and least > ONE_GPU):
        return ""
    if room.could_place(least, request.gpus_per_node):
        return ""
    if least <= ONE_GPU:
        return f"no card has {format_gpus(least)} free"
    return "too few cards are free as a whole"


def _free_on_nodes(request: Request, room: Room) -> str:
    """How what is free lies on the nodes, as far as it matters to the request."""
    least = request.sizes[-1]
    if not room.named or least <= ONE_GPU:
        return ""
    by_free = room.nodes.by_free
    if request.gpus_per_node:
        able = sum(1 for gpus, _ in by_free if gpus >= request.gpus_per_node)
        return f"{_nodes_have(able)} {format_gpus(request.gpus_per_node)} or more GPUs free"
    if least <= room.nodes.largest:
        most = max(0, by_free[-1][0]) if by_free else 0
        return f"the most free on one node is {format_gpus(most)}"
    idle = sum(1 for gpus, node in by_free if gpus == room.nodes.sizes[node])
    return f"{_nodes_have(idle)} all GPUs free"


def _nodes_have(count: int) -> str:
    """``no node has``, ``1 node has``, ``2 nodes have``."""
    return f"{count} nodes have" if count > 1 else f"{count or 'no'} node has"
