"""A start beside the best that waited in its pool, as that stood before the start.

What waited is recorded as the pass left it. What the start itself changed of that is no reason for the
start: the team uses more, the quota is taken, and their source waits anew.
"""

from __future__ import annotations

from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.scheduling.explaining.comparison import Comparison, compare
from dagster_gpufair.scheduling.model import Class
from dagster_gpufair.scheduling.order import Standing

AS_LEFT = "as it was after that pass"


def compared_before(
    started: Standing, lease: LeaseRecord, waited: Standing, request: RequestRecord
) -> Comparison:
    """Compare the two without what the start changed; rows of which that leaves nothing are left out."""
    left_out: set[str] = set()
    if lease.team == request.team:
        waited = waited._replace(saturation=started.saturation)
        left_out.add("saturation")
        if _of_one_account(started, lease, waited, request):
            class_ = _class(started, lease, waited, request)
            waited = waited._replace(inside=started.inside, class_=class_)
            left_out.add("inside")
    if of_one_source(lease, request):
        its = started.points
        points = waited.points._replace(wait=its.wait, source=its.source)
        waited = waited._replace(points=points)
        left_out |= {"wait", "source", "sum"}
    notes = {"saturation": AS_LEFT, "inside": AS_LEFT}
    if lease.team == request.team and waited.class_ != started.class_:
        notes["class"] = AS_LEFT
    compared = compare(started, waited, notes)
    return compared._replace(rows=tuple(row for row in compared.rows if row.name not in left_out))


def of_one_source(lease: LeaseRecord, request: RequestRecord) -> bool:
    """Whether the waiting of the one counts anew from the start of the other."""
    return lease.source is not None and lease.source == request.source


def _of_one_account(
    started: Standing, lease: LeaseRecord, waited: Standing, request: RequestRecord
) -> bool:
    """Whether they are of one account, given that they are of one team."""
    has_accounts = bool(started.inside or waited.inside)
    return lease.project == request.project or not has_accounts


def _class(
    started: Standing, lease: LeaseRecord, waited: Standing, request: RequestRecord
) -> Class:
    """What fitted in the quota before the start, the other would have fitted too if it is no larger."""
    least = request.gpus if request.min_gpus is None else min(request.gpus, request.min_gpus)
    if least > lease.gpus or Class.URGENT in (started.class_, waited.class_):
        return waited.class_
    return min(started.class_, waited.class_)
