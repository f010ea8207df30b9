"""How much each account has borrowed lately: GPU-hours that fade with a half-life.

Durations in seconds, GPU amounts in thousandths, results in GPU-hours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from dagster_gpufair.ledger.statements import insert_into
from dagster_gpufair.ledger.tables import BorrowedUseRow
from dagster_gpufair.scheduling.model import Account

_HOUR = 3600.0
_ONE_GPU = 1000


def used(session: Session, now: float, half_life: float) -> Mapping[tuple[Account, str], float]:
    """GPU-hours borrowed by each account in each pool, as they count ``now``."""
    return {
        (Account(row.team, row.project or None), row.pool): row.gpu_hours
        * _left(now - row.as_of, half_life)
        for row in session.execute(select(*BorrowedUseRow.__table__.columns))
    }


def accrue(
    session: Session,
    borrowed: Mapping[tuple[Account, str], int],
    since: float,
    now: float,
    half_life: float,
) -> None:
    """Add what was borrowed from ``since`` until ``now``, while that did not change.

    Exact, so it makes no difference how an interval is cut into calls.
    """
    if now <= since:
        return
    before = used(session, now, half_life)
    hours = _faded(now - since, half_life) / _HOUR
    rows = [
        {
            "team": account.team,
            "project": account.project or "",
            "pool": pool,
            "gpu_hours": before.get((account, pool), 0.0) + gpus / _ONE_GPU * hours,
            "as_of": now,
        }
        for (account, pool), gpus in borrowed.items()
        if gpus > 0
    ]
    for row in rows:
        new = insert_into(session, BorrowedUseRow).values(row)
        session.execute(
            new.on_conflict_do_update(
                index_elements=[
                    BorrowedUseRow.team,
                    BorrowedUseRow.project,
                    BorrowedUseRow.pool,
                ],
                set_={"gpu_hours": new.excluded.gpu_hours, "as_of": new.excluded.as_of},
            )
        )


def _left(age: float, half_life: float) -> float:
    """The part of something this old that still counts."""
    if age <= 0:
        return 1.0
    return 0.5 ** (age / half_life) if half_life > 0 else 0.0


def _faded(duration: float, half_life: float) -> float:
    """Seconds that still count at the end of an interval: the integral of `_left` over it."""
    if half_life <= 0:
        return 0.0
    return half_life / math.log(2) * -math.expm1(-math.log(2) * duration / half_life)
