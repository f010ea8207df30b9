"""One writer of grants at a time, so that two daemons by mistake never grant the same GPU.

The right to write is held for a time and renewed; whoever takes it over gets a higher epoch. It is
not enough to have it: `still` asks for it again inside the transaction that grants. All but
`current` belong in a `Ledger.writing` block, beside which no other goes on.

Its times are those of a `Clock` that no daemon's wall clock can put wrong: the database's on Postgres, and
on SQLite, which all daemons of one machine share, the time since the machine's boot.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from dagster_gpufair.ledger.statements import insert_into
from dagster_gpufair.ledger.tables import WriterRow

TURN_LASTS = 30.0
"""Seconds after which a daemon that has not been heard of may be replaced."""
_ONLY = 1


@dataclass(frozen=True, slots=True)
class Clock:
    """A moment in seconds, and whose time it is."""

    now: float
    whose: str


def turn_clock(session: Session) -> Clock:
    """The time that turns are measured in, the same for all daemons of this ledger."""
    if session.get_bind().dialect.name == "postgresql":
        now = session.scalar(text("SELECT extract(epoch FROM clock_timestamp())"))
        return Clock(float(now or 0.0), "the database")
    return Clock(*since_boot())


def since_boot() -> tuple[float, str]:
    """Seconds since this machine was booted, suspended or not, and which boot that was."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return time.clock_gettime(time.CLOCK_BOOTTIME), f"boot {boot}"
    except (OSError, AttributeError):
        # Elsewhere than on Linux: the monotonic clock begins anew at a boot too.
        return time.monotonic(), f"boot of {socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that grants, with an id of its own. ``started`` in seconds since the epoch."""

    host: str
    pid: int
    id: str
    started: float

    @classmethod
    def here(cls, started: float) -> Holder:
        """This process."""
        return cls(_host(), os.getpid(), uuid.uuid4().hex, started)


@dataclass(frozen=True, slots=True)
class Writer:
    """Who may write, and until when, by which clock."""

    holder: Holder | None
    epoch: int
    expires_at: float
    clock: str


def current(session: Session) -> Writer | None:
    """Who has the right to write, expired or not; None if nobody ever had."""
    return _read(session)


def take(session: Session, holder: Holder, clock: Clock, ttl: float = TURN_LASTS) -> int | None:
    """Take the right to write grants for ``ttl`` seconds, or renew it.

    It is free if it was given up, if it has expired, or if its holder was this process, or one of this
    machine that is gone: with the boot that its time was counted from, for instance.

    Returns:
        The epoch, higher at each change of holder; None if another has it.
    """
    now_held = _read(session)
    if now_held is None:
        return _hold(session, holder, 1, clock, ttl)
    other = now_held.holder
    if other is not None and other.id == holder.id:
        return _hold(session, holder, now_held.epoch, clock, ttl)
    is_over = now_held.clock != clock.whose or now_held.expires_at <= clock.now
    if other is None or is_over or _is_gone(other, holder):
        return _hold(session, holder, now_held.epoch + 1, clock, ttl)
    return None


def still(
    session: Session, holder_id: str, epoch: int, clock: Clock, ttl: float = TURN_LASTS
) -> bool:
    """Whether the right is still held, and renew it: nobody takes it before this commits."""
    held = _read(session)
    if held is None or held.holder is None or held.holder.id != holder_id or held.epoch != epoch:
        return False
    _hold(session, held.holder, epoch, clock, ttl)
    return True


def release(session: Session, holder_id: str) -> None:
    """Give the right up, so that another need not wait for it to expire."""
    held = _read(session)
    if held is not None and held.holder is not None and held.holder.id == holder_id:
        session.execute(
            update(WriterRow)
            .where(WriterRow.id == _ONLY)
            .values(holder=None, expires_at=0.0)
            .execution_options(synchronize_session=False)
        )


def _read(session: Session) -> Writer | None:
    query = select(WriterRow.holder, WriterRow.epoch, WriterRow.expires_at, WriterRow.clock)
    row = session.execute(query.where(WriterRow.id == _ONLY)).one_or_none()
    if row is None:
        return None
    return Writer(
        Holder(**row.holder) if row.holder else None, row.epoch, row.expires_at, row.clock
    )


def _hold(session: Session, holder: Holder, epoch: int, clock: Clock, ttl: float) -> int:
    new = insert_into(session, WriterRow).values(
        id=_ONLY,
        holder=asdict(holder),
        epoch=epoch,
        expires_at=clock.now + ttl,
        clock=clock.whose,
    )
    session.execute(
        new.on_conflict_do_update(
            index_elements=[WriterRow.id],
            set_={
                "holder": new.excluded.holder,
                "epoch": new.excluded.epoch,
                "expires_at": new.excluded.expires_at,
                "clock": new.excluded.clock,
            },
        )
    )
    return epoch


def _host() -> str:
    """This machine, or container: where a process id means something."""
    try:
        pids = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()} {pids}"


def _is_gone(other: Holder, holder: Holder) -> bool:
    if other.host != holder.host:
        return False
    # A process has one that writes: what comes later in it is that one, begun again.
    if other.pid == holder.pid:
        return True
    # Elsewhere than on POSIX, signal 0 is not a question.
    if os.name != "posix":
        return False
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
