"""Requests, grants and policies as the tests need them, in one line each."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from dagster_gpufair.ledger import lifecycle
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.scheduling.model import Class

POLICY = """\
pools:
  h100: {nodes: {h1: 8, h2: 8}}
  t4: {gpus: 4}
teams:
  nlp: {quota: {h100: 8}, borrow_limit: {h100: 4}}
  vision: {quota: {h100: 8}, lend_limit: {h100: 4}}
"""


def asked(id_: str = "run-1", gpus: int = 8, at: float = 1000.0, **more: Any) -> RequestRecord:
    """A request of team nlp for whole GPUs of pool h100."""
    values = {
        "run_id": id_,
        "team": "nlp",
        "tier": "standard",
        "pools": ("h100",),
        "gpus": gpus * 1000,
        "submitted_at": at,
        **more,
    }
    return RequestRecord(id=id_, **values)


def granted(
    session: Session,
    id_: str = "run-1",
    gpus: int = 8,
    at: float = 1000.0,
    node: str | None = "h1",
    pool: str = "h100",
    class_: Class = Class.GUARANTEED,
    **more: Any,
) -> int:
    """Submit a request, if it is new, and grant it whole GPUs of one node."""
    lifecycle.submit(session, asked(id_, gpus, at, pools=(pool,), **more))
    return lifecycle.grant(
        session,
        id_,
        pool=pool,
        gpus=gpus * 1000,
        nodes={node: gpus * 1000} if node else {},
        class_=class_,
        at=at,
        policy_version=1,
    )
