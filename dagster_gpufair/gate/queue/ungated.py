"""GPU runs that run without a grant: counted until they end, so that nobody else is given their GPUs.

What cannot be counted, because nobody can know which GPUs it holds, is said in the log and in the
ledger's status, where `gpufair pools` finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

from dagster import DagsterRun, RunRecord

from dagster_gpufair.engine.engine import Engine
from dagster_gpufair.gate.holders.runs import submission_of
from dagster_gpufair.gate.submission.admission import (
    Refusal,
    Submission,
    admit,
    owner_of,
    source_of,
)
from dagster_gpufair.gate.submission.tags import POOL, TEAM, InvalidAsk, asks_for_gpus, gpus_of
from dagster_gpufair.ledger import leases, lifecycle, requests, status
from dagster_gpufair.ledger.leases import LeaseRecord
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.ledger.status import UNCOUNTED
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.problems import shown
from dagster_gpufair.policy.quantities import format_gpus


class _Use(NamedTuple):
    """What a run uses, as far as it can be known."""

    request: RequestRecord
    pool: str
    gpus: int
    nodes: dict[str, int]


class Ungated:
    """Looks for such runs pass by pass; remembers which cannot be counted, so as to say so once."""

    def __init__(self, engine: Engine, logger: logging.Logger):
        self._engine = engine
        self._logger = logger
        self._uncounted: dict[str, tuple[int, str]] = {}
        """Of each run that cannot be counted, by which policy version, and why."""
        self._said: dict[str, str] | None = None

    def find(self, unfinished: Collection[str], active: Sequence[RunRecord], now: float) -> None:
        """Count the active runs that use GPUs and have no lease."""
        in_force, book = self._engine.rules.in_force, self._engine.book
        assert in_force is not None
        before, self._uncounted = self._uncounted, {}
        for found in active:
            run = found.dagster_run
            if book.lease_of_run(run.run_id) is not None or run.run_id not in unfinished:
                continue
            if not asks_for_gpus(run.tags):
                continue
            known = before.get(run.run_id)
            if known is not None and known[0] == in_force.version:
                self._uncounted[run.run_id] = known
                continue
            use = self._use(run, in_force.policy, in_force.version, now)
            if isinstance(use, str):
                self._uncounted[run.run_id] = in_force.version, use
                self._logger.error(
                    "Run %s uses GPUs without a grant, and they cannot be counted: %s. Whoever is "
                    "granted GPUs meanwhile may be given its GPUs too.",
                    run.run_id,
                    use,
                )
            else:
                self._count(use, found, now)
        self._say(now)

    def _count(self, use: _Use, found: RunRecord, now: float) -> None:
        since = now if found.start_time is None else min(found.start_time, now)
        with self._engine.turn.writing() as session:
            lifecycle.find(session, use.request, use.pool, use.nodes, since, use.gpus)
            lease = leases.of_run(session, use.request.run_id)[-1]
        self._engine.book.granted(lease)
        self._logger.error(
            "Run %s of team %s uses %s × %s without a grant: it was not started by this queue. "
            "It is counted until it ends.",
            use.request.run_id,
            use.request.team,
            format_gpus(use.gpus),
            lease.pool,
        )

    def _use(self, run: DagsterRun, policy: Policy, version: int, now: float) -> _Use | str:
        """What a run uses; in words, why that cannot be known."""
        with self._engine.ledger.reading() as session:
            had = [lease for lease in leases.of_run(session, run.run_id) if not lease.void]
            known = requests.by_runs(session, [run.run_id]).get(run.run_id)
        if had and known is not None:
            return _as_before(known, had[-1])
        submission = submission_of(run, now)
        request = admit(policy, submission)
        if not isinstance(request, Refusal):
            record = RequestRecord.of(
                request,
                job_name=submission.job_name,
                location=submission.location,
                policy_version=version,
            )
            return _Use(known or record, request.pools[0], request.gpus, {})
        return _of_its_tags(policy, submission, version, request.message)

    def _say(self, now: float) -> None:
        """Keep in the ledger's status what is used and counts nowhere."""
        said = {run_id: why for run_id, (_, why) in self._uncounted.items()}
        if said != (self._said or {}) or self._said is None:
            with self._engine.turn.writing() as session:
                status.put(session, UNCOUNTED, said, now)
            self._said = said


def _as_before(request: RequestRecord, lease: LeaseRecord) -> _Use:
    """It goes on after its lease has ended: with the GPUs that it had."""
    return _Use(request, lease.pool, lease.gpus, dict(lease.nodes))


def _of_its_tags(policy: Policy, submission: Submission, version: int, refused: str) -> _Use | str:
    """What a run uses that would have been refused: the GPUs that its tags name are in use all the same."""
    tags = submission.tags
    try:
        gpus = gpus_of(tags)
    except InvalidAsk as error:
        return str(error)
    pools = [name.strip() for name in tags.get(POOL, "").split(",") if name.strip()]
    pools = pools or (list(policy.pools) if len(policy.pools) == 1 else [])
    pool = next((name for name in pools if name in policy.pools), None)
    if pool is None:
        named = shown(tags[POOL]) if POOL in tags else "none"
        return f"which pool its {format_gpus(gpus)} GPUs are in is not known (tag {POOL}: {named})"
    request = RequestRecord(
        id=submission.run_id,
        run_id=submission.run_id,
        team=owner_of(policy, submission.location) or tags.get(TEAM, ""),
        tier=min(policy.tiers, key=lambda name: policy.tiers[name].points),
        pools=(pool,),
        gpus=gpus,
        submitted_at=submission.at,
        job_name=submission.job_name,
        location=submission.location,
        source=source_of(submission),
        policy_version=version,
    )
    return _Use(request, pool, min(gpus, policy.pools[pool].capacity), {})
