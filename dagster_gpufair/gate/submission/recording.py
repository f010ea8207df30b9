"""Writing what admission decided into the ledger: one place for the coordinator and the daemon."""

from __future__ import annotations

from sqlalchemy.orm import Session

from dagster_gpufair.engine.policy_file import InForce
from dagster_gpufair.gate.submission.admission import (
    Refusal,
    Submission,
    admit,
    launched_by,
    owner_of,
)
from dagster_gpufair.gate.submission.tags import POOL, PROJECT, TEAM, TIER, InvalidAsk, gpus_of
from dagster_gpufair.ledger import lifecycle
from dagster_gpufair.ledger.requests import RequestRecord


def record(
    session: Session, in_force: InForce, submission: Submission, refusal: Refusal | None = None
) -> RequestRecord | Refusal:
    """Admit a run and record its request, or its refusal, which is recorded before it is acted on.

    ``refusal`` is given where the run is bad before the policy is asked.
    """
    request = refusal or admit(in_force.policy, submission)
    if isinstance(request, Refusal):
        lifecycle.refuse(
            session,
            _refused(in_force, submission),
            request.code,
            request.message,
            submission.at,
        )
        return request
    new = RequestRecord.of(
        request,
        job_name=submission.job_name,
        location=submission.location,
        policy_version=in_force.version,
        launched_by=launched_by(submission),
    )
    lifecycle.submit(session, new)
    return new


def _refused(in_force: InForce, submission: Submission) -> RequestRecord:
    """What can be read of a request that cannot be: whose it is or claims to be, and what it asks for.

    No GPUs, an empty team or an empty tier: that could not be read, or is not said.
    """
    tags = submission.tags
    try:
        gpus = gpus_of(tags)
    except InvalidAsk:
        gpus = 0
    return RequestRecord(
        id=submission.run_id,
        run_id=submission.run_id,
        team=owner_of(in_force.policy, submission.location) or tags.get(TEAM, ""),
        tier=tags.get(TIER, ""),
        pools=tuple(pool.strip() for pool in tags[POOL].split(",")) if POOL in tags else (),
        gpus=gpus,
        submitted_at=submission.at,
        job_name=submission.job_name,
        location=submission.location,
        project=tags.get(PROJECT),
        policy_version=in_force.version,
        launched_by=launched_by(submission),
    )
