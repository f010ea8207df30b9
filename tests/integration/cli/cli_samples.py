"""A queue as the tests of the command line need it, decided by the real plan, in one line each."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.engine.carry_out import judged
from dagster_gpufair.ledger import leases, lifecycle, nodes, policies, reservations, status
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.requests import RequestRecord
from dagster_gpufair.ledger.state import state_of
from dagster_gpufair.ledger.status import DAEMON
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.scheduling.plan import plan

POLICY = """\
pools:
  h100: {nodes: {h1: 8, h2: 8}}
  t4: {gpus: 4}
teams:
  nlp: {quota: {h100: 8}, borrow_limit: {h100: 4}, tiers: [milestone, standard, exploratory]}
  vision: {quota: {h100: 4, t4: 2}}
  speech: {quota: {t4: 2}, lend_limit: {t4: 1}}
"""
WITH_A_PROJECT = POLICY.replace(
    "{h100: 8}, borrow", "{h100: 8}, projects: {pretrain: {quota: {h100: 4}}}, borrow"
)
COORDINATOR = {"module": "dagster_gpufair", "class": "GpuFairRunCoordinator"}
MINUTE = 60.0


def run_id(number: int) -> str:
    """As Dagster makes them, beginning with the number: ``00000007-…``."""
    return f"{number:08d}-5eed-4bad-8dad-00000000cafe"


def asked(number: int, gpus: float = 8, ago: float = 0.0, **more: Any) -> RequestRecord:
    """A request of team nlp for GPUs of pool h100, submitted so many minutes ago."""
    values = {
        "id": run_id(number),
        "run_id": run_id(number),
        "team": "nlp",
        "tier": "standard",
        "pools": ("h100",),
        "gpus": round(gpus * 1000),
        "submitted_at": minutes(ago),
        "job_name": "train",
        "policy_version": 1,
        **more,
    }
    source = values.get("source")
    if source is not None and source != values["job_name"]:
        values.setdefault("launched_by", {"what": "user", "name": source, "user": source})
    return RequestRecord(**values)


class _Start:
    at = 0.0


def begin() -> None:
    """What follows counts its minutes from here, however long the test takes."""
    _Start.at = time.time()


def minutes(ago: float) -> float:
    """The moment so many minutes before the test began, or after it if negative."""
    return _Start.at - ago * MINUTE


def time_of_day(ago: float) -> str:
    """That moment as people read it."""
    return clock(minutes(ago), _Start.at)


def minute(ago: float) -> str:
    """That moment without its zone: what a time with seconds begins with."""
    return time_of_day(ago).rpartition(" ")[0]


def utc(ago: float) -> str:
    """That moment as a policy file has it."""
    return datetime.fromtimestamp(minutes(ago), timezone.utc).isoformat(timespec="seconds")


class Filling:
    """Fills a ledger as the coordinator and the daemon do."""

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.text = POLICY

    def adopt(
        self, text: str = POLICY, by: str = "daemon on here pid:[7]", ago: float = 60
    ) -> None:
        """Put a policy in force."""
        self.text = text
        digest = hashlib.sha256(text.encode()).hexdigest()
        with self.ledger.writing() as session:
            policies.adopt(session, text, digest, "gpufair.yaml", by, minutes(ago))

    def submit(self, *asks: RequestRecord) -> None:
        """They wait."""
        with self.ledger.writing() as session:
            for ask in asks:
                lifecycle.submit(session, ask)

    def decide(self, ago: float = 0.0, *, begins: bool = True) -> Sequence[str]:
        """A pass of the daemon so many minutes ago: what it granted, whose workers come at once."""
        at = minutes(ago)
        policy = parse_policy(self.text)
        with self.ledger.writing() as session:
            decided = plan(policy, state_of(session, policy, at), at)
            for start in decided.starts:
                lease = lifecycle.grant(
                    session,
                    start.request.id,
                    pool=start.pool,
                    gpus=start.gpus,
                    nodes=start.nodes,
                    class_=start.class_,
                    at=at,
                    policy_version=1,
                    data=judged(start, decided),
                )
                if begins:
                    lifecycle.begin(session, lease, at, at)
        return [start.request.id for start in decided.starts]

    def reserve(self, ago: float = 0.0) -> None:
        """What a pass of the daemon so many minutes ago kept for whom."""
        at = minutes(ago)
        policy = parse_policy(self.text)
        with self.ledger.writing() as session:
            decided = plan(policy, state_of(session, policy, at), at).reservations
            reservations.record(
                session, *reservations.compared(reservations.current(session), decided, at), at
            )

    def passed(self, ago: float = 0.0) -> None:
        """The daemon was there so many minutes ago."""
        at = minutes(ago)
        with self.ledger.writing() as session:
            status.put(session, DAEMON, {"at": at, "host": "gpuhost pid:[7]"}, at)

    def run(self, *asks: RequestRecord, ago: float = 0.0) -> None:
        """They are submitted, and start in a pass so many minutes ago."""
        self.submit(*asks)
        started = self.decide(ago)
        assert {ask.id for ask in asks} <= set(started), "the sample policy has no room for them"

    def cordon(self, pool: str, node: str, reason: str = "", ago: float = 0.0) -> None:
        """Ana takes a node into maintenance."""
        with self.ledger.writing() as session:
            nodes.cordon(session, pool, node, "ana on ops1", reason, minutes(ago))

    def usually_lasts(self, job: str, of_minutes: float, team: str = "nlp") -> None:
        """Three runs of a job have lasted so long before, one after the other."""
        for number in range(900, 903):
            began = of_minutes * (904 - number)
            self.run(asked(number, 1, ago=began, team=team, job_name=job), ago=began)
            self.end(number, ago=began - of_minutes)

    def end(self, number: int, reason: str = "success", ago: float = 0.0) -> None:
        """A run gives its GPUs back."""
        with self.ledger.writing() as session:
            lease = leases.of_run(session, run_id(number))[-1]
            lifecycle.release(session, lease.id, minutes(ago), reason)
