"""What is said in a run's channel, both ways."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """What a run is told of its lease: GPUs in thousandths, ``since`` in seconds since the epoch.

    ``request`` names the folder of its checkpoints: the same for every run that goes on with the work.
    """

    request: str
    pool: str
    gpus: int
    since: float


@dataclass(frozen=True, slots=True)
class Notice:
    """That a run is stopped at ``until`` (seconds since the epoch), by which rule and for whom, in words."""

    until: float
    rule: str
    asked_by: str


@dataclass(frozen=True, slots=True)
class Heard:
    """What a run says of itself, as far as it can be true. Times in seconds since the epoch.

    ``may_stop`` is said under the present notice only. If it comes from steps, ``steps`` has their keys, and
    others of the run may have something to lose (`steps.may_stop_now`). If it comes from the run as a whole,
    ``steps`` is empty.
    """

    checkpointed_at: float | None = None
    checkpoint_path: str | None = None
    may_stop: bool = False
    steps: frozenset[str] = frozenset()
    busy_until: float | None = None
    busy_reason: str | None = None


NOTHING = Heard()
