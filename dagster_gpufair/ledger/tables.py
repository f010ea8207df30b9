"""The tables, all named ``gpufair_…``: they share a database with Dagster's own.

Times and durations are floats in seconds (times since the epoch, UTC); GPU amounts are integers in
thousandths. A change here needs a migration in ``migrations/versions``; a test compares the two.
"""

from __future__ import annotations

from typing import Annotated, Any

from sqlalchemy import BigInteger, Boolean, Double, ForeignKey, Index, MetaData, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dagster_gpufair.ledger.columns import Data, Name, Names, Serial, Words

PREFIX = "gpufair_"

Indexed = Annotated[str, mapped_column(Name())]


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
        }
    )
    type_annotation_map = {
        str: Words(),
        float: Double(),
        int: BigInteger(),
        bool: Boolean(),
        tuple[str, ...]: Names(),
        dict[str, Any]: Data(),
    }


class PolicyVersionRow(Base):
    """A policy as it was adopted. The newest is in force."""

    __tablename__ = "gpufair_policy_versions"
    __table_args__ = {"sqlite_autoincrement": True}

    version: Mapped[int] = mapped_column(Serial, primary_key=True)
    document: Mapped[str]
    digest: Mapped[str]
    source: Mapped[str]
    adopted_at: Mapped[float]
    adopted_by: Mapped[str]


class RequestRow(Base):
    """What a run, or one attempt of a step, asks for.

    ``id`` stays the same for its whole life, ``run_id`` does not: what was preempted goes on in another
    run where it cannot go on in the same. ``step_key`` is empty for a whole run.
    """

    __tablename__ = "gpufair_requests"
    __table_args__ = (
        Index("ix_gpufair_requests_holder", "run_id", "step_key", "attempt", unique=True),
        # A run id's beginning, whatever the collation of the database.
        Index("ix_gpufair_requests_prefix", "id", postgresql_ops={"id": "text_pattern_ops"}),
        Index(None, "finished_at"),
        # What nobody has been told of yet: a handful, found without reading the history.
        Index(
            "ix_gpufair_requests_untold",
            "finished_at",
            sqlite_where=text("told_state IS NOT NULL AND told_state <> state"),
            postgresql_where=text("told_state IS NOT NULL AND told_state <> state"),
        ),
        # What had more runs than one: a few.
        Index(
            "ix_gpufair_requests_preempted",
            "id",
            sqlite_where=text("preempted > 0"),
            postgresql_where=text("preempted > 0"),
        ),
        # How long a job has lasted of late, without reading its history.
        Index(
            "ix_gpufair_requests_released",
            "team",
            "job_name",
            "finished_at",
            sqlite_where=text("state = 'released'"),
            postgresql_where=text("state = 'released'"),
        ),
    )

    id: Mapped[Indexed] = mapped_column(primary_key=True)
    run_id: Mapped[Indexed]
    step_key: Mapped[Indexed] = mapped_column(server_default=text("''"))
    attempt: Mapped[int] = mapped_column(server_default="1")
    team: Mapped[Indexed]
    tier: Mapped[str]
    pools: Mapped[tuple[str, ...]]
    gpus: Mapped[int]
    submitted_at: Mapped[float]
    job_name: Mapped[Indexed]
    location: Mapped[str | None]
    project: Mapped[Indexed | None]
    kind: Mapped[str | None]
    source: Mapped[Indexed | None]
    launched_by: Mapped[dict[str, Any] | None] = mapped_column(Data(none_as_null=True))
    """What launched it, a backfill, schedule, sensor, user or job: ``what``, ``name``, and ``user``."""
    min_gpus: Mapped[int | None]
    gpus_per_node: Mapped[int | None]
    max_duration: Mapped[float | None]
    cpus: Mapped[float]
    memory_gib: Mapped[float]
    preempted: Mapped[int]
    priority: Mapped[int] = mapped_column(server_default="0")
    """The run's own `dagster/priority`."""
    continues: Mapped[Indexed | None]
    """The run that was stopped for another, while the one that goes on with it is not in the queue yet."""
    state: Mapped[str] = mapped_column(index=True)
    policy_version: Mapped[int | None]
    blocked_reason: Mapped[str | None]
    blocked_message: Mapped[str | None]
    told_state: Mapped[str | None]
    told_reason: Mapped[str | None]
    finished_at: Mapped[float | None]
    refusal_code: Mapped[str | None]
    refusal_message: Mapped[str | None]


class LeaseRow(Base):
    """GPUs held for a request. Open until ``released_at`` is set, which happens once.

    ``started_at`` is when the GPUs were given, ``began_at`` when the work on them began: bounds count
    from there. ``state`` is one of `lifecycle`'s; ``ungated`` leases were not granted: their run was
    found running.
    """

    __tablename__ = "gpufair_leases"
    __table_args__ = (
        # However many daemons decide at once: never two open leases for one request.
        Index(
            "ix_gpufair_leases_open",
            "request_id",
            unique=True,
            sqlite_where=text("released_at IS NULL"),
            postgresql_where=text("released_at IS NULL"),
        ),
        # The newest start of a source, without reading its history.
        Index(None, "team", "source", "started_at"),
        # What was held between two moments, and what is old enough to be pruned.
        Index(None, "released_at"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    request_id: Mapped[Indexed] = mapped_column(ForeignKey("gpufair_requests.id"), index=True)
    run_id: Mapped[Indexed] = mapped_column(index=True)
    step_key: Mapped[Indexed] = mapped_column(server_default=text("''"))
    attempt: Mapped[int] = mapped_column(server_default="1")
    state: Mapped[str] = mapped_column(server_default="released")
    team: Mapped[Indexed]
    project: Mapped[Indexed | None]
    tier: Mapped[str]
    kind: Mapped[str | None]
    source: Mapped[Indexed | None]
    pool: Mapped[Indexed]
    gpus: Mapped[int]
    nodes: Mapped[dict[str, Any]]
    cards: Mapped[dict[str, Any] | None] = mapped_column(Data(none_as_null=True))
    """By node, the number of each card and the thousandths of it that are leased; None in old leases."""
    devices: Mapped[dict[str, Any] | None] = mapped_column(Data(none_as_null=True))
    """By node, the devices that are bound; None where they are not known."""
    started_at: Mapped[float]
    began_at: Mapped[float | None]
    max_duration: Mapped[float | None]
    class_: Mapped[str | None] = mapped_column("class")
    policy_version: Mapped[int | None]
    ungated: Mapped[bool]
    launch_epoch: Mapped[int | None]
    launch_host: Mapped[str | None]
    """Where the launch was made from: process ids mean something there."""
    processes: Mapped[dict[str, Any] | None] = mapped_column(Data(none_as_null=True))
    """The processes of its run that were seen on ``launch_host``: when each began, by process id."""
    claimed_at: Mapped[float | None]
    launched_at: Mapped[float | None]
    """When the launcher had taken it; None while the launch is not settled."""
    warned_at: Mapped[float | None]
    checkpointed_at: Mapped[float | None]
    term_from: Mapped[float | None]
    kept_until: Mapped[float | None]
    """Its owner keeps it until then: it is not stopped for others before."""
    notice_until: Mapped[float | None]
    notice_for: Mapped[str | None]
    notice_rule: Mapped[str | None]
    stop_asked_at: Mapped[float | None]
    stop_why: Mapped[str | None]
    stop_tries: Mapped[int] = mapped_column(server_default="0")
    over_at: Mapped[float | None]
    """When its run was over by Dagster's word, while its processes are still there."""
    released_at: Mapped[float | None]
    release_reason: Mapped[str | None]


class PromiseRow(Base):
    """GPUs kept for a request while its victims leave."""

    __tablename__ = "gpufair_promises"

    request_id: Mapped[Indexed] = mapped_column(ForeignKey("gpufair_requests.id"), primary_key=True)
    pool: Mapped[Indexed]
    gpus: Mapped[int]
    nodes: Mapped[dict[str, Any]]
    made_at: Mapped[float]
    policy_version: Mapped[int | None]


class ApprovalRow(Base):
    """An action that awaits a person: proposed once, decided once, or withdrawn."""

    __tablename__ = "gpufair_approvals"
    __table_args__ = (
        Index(
            "ix_gpufair_approvals_open",
            "request_id",
            unique=True,
            sqlite_where=text("state = 'proposed'"),
            postgresql_where=text("state = 'proposed'"),
        ),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    action: Mapped[str]
    request_id: Mapped[Indexed] = mapped_column(ForeignKey("gpufair_requests.id"))
    data: Mapped[dict[str, Any]]
    state: Mapped[str]
    proposed_at: Mapped[float]
    decided_at: Mapped[float | None]
    decided_by: Mapped[str | None]
    reason: Mapped[str | None]


class EventRow(Base):
    """Something that happened. Only ever added to; ids rise in the order of commits."""

    __tablename__ = "gpufair_events"
    __table_args__ = (Index(None, "at"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    at: Mapped[float]
    kind: Mapped[str]
    run_id: Mapped[Indexed | None] = mapped_column(index=True)
    team: Mapped[Indexed | None]
    pool: Mapped[Indexed | None]
    data: Mapped[dict[str, Any]]


class BorrowedUseRow(Base):
    """GPU-hours an account has borrowed in a pool, decayed up to ``as_of``."""

    __tablename__ = "gpufair_borrowed_use"

    team: Mapped[Indexed] = mapped_column(primary_key=True)
    project: Mapped[Indexed] = mapped_column(primary_key=True)
    """Empty for the team's own account: part of a primary key, so never null."""
    pool: Mapped[Indexed] = mapped_column(primary_key=True)
    gpu_hours: Mapped[float]
    as_of: Mapped[float]


class PastUseRow(Base):
    """What was pruned, summed up: a row for each day on which such requests ended."""

    __tablename__ = "gpufair_past_use"

    day: Mapped[Indexed] = mapped_column(primary_key=True)
    """In UTC, as 2026-06-01."""
    team: Mapped[Indexed] = mapped_column(primary_key=True)
    project: Mapped[Indexed] = mapped_column(primary_key=True)
    tier: Mapped[Indexed] = mapped_column(primary_key=True)
    kind: Mapped[Indexed] = mapped_column(primary_key=True)
    pool: Mapped[Indexed] = mapped_column(primary_key=True)
    """Empty for what never had GPUs; so are project and kind where a request named none."""
    ended_as: Mapped[Indexed] = mapped_column(primary_key=True)
    requests: Mapped[int]
    gpu_seconds: Mapped[float]
    waited: Mapped[float]
    """Seconds from submission to grant, or to the end of what was never granted."""


class CordonedNodeRow(Base):
    """A node that takes no new work."""

    __tablename__ = "gpufair_cordoned_nodes"

    pool: Mapped[Indexed] = mapped_column(primary_key=True)
    node: Mapped[Indexed] = mapped_column(primary_key=True)
    cordoned_at: Mapped[float]
    by: Mapped[str] = mapped_column("cordoned_by")
    reason: Mapped[str]


class WriterRow(Base):
    """Who may write grants now. One row."""

    __tablename__ = "gpufair_writer"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    holder: Mapped[dict[str, Any] | None] = mapped_column(Data(none_as_null=True))
    epoch: Mapped[int]
    expires_at: Mapped[float]
    clock: Mapped[str] = mapped_column(server_default=text("''"))
    """Whose time ``expires_at`` is in: the database's, or that since a boot of this machine."""


class StatusRow(Base):
    """The last word on something, by key."""

    __tablename__ = "gpufair_status"

    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[Any] = mapped_column(Data())
    updated_at: Mapped[float]
