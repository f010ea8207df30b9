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
from dagster_gpufair.gate.submission.tags import POOL, TEAM, TIER
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
    """What is left of a request that cannot be: whose it is or claims to be, and from where."""
    tags = submission.tags
    return RequestRecord(
        id=submission.run_id,
        run_id=submission.run_id,
        team=owner_of(in_force.policy, submission.location) or tags.get(TEAM, ""),
        tier=tags.get(TIER, ""),
        pools=(tags[POOL],) if POOL in tags else (),
        gpus=0,
        submitted_at=submission.at,
        job_name=submission.job_name,
        location=submission.location,
        policy_version=in_force.version,
        launched_by=launched_by(submission),
    )
