"""What the teams of the demo ask for, submitted as a person would: to the web server, by GraphQL."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import click

from dagster_gpufair.cli.demo.home import HOST
from dagster_gpufair.cli.output.text import sentence
from dagster_gpufair.gate.submission.tags import CONTINUES, GPUS, POOL, TEAM, TIER

MOST_SHARDS = 40
"""Partitions of the example's asset."""
BACKFILL_TAG = "dagster/backfill"
_REPOSITORY = "__repository__"
_PATIENCE = 120.0

_LAUNCH_RUN = """
mutation Launch($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on Error { message }
  }
}"""
_LAUNCH_BACKFILL = """
mutation Backfill($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on Error { message }
  }
}"""


class NotTaken(click.ClickException):
    """A submission that Dagster, or its web server, did not take."""


@dataclass(frozen=True)
class DemoRun:
    """What a team submits: one run, or with ``shards`` a backfill of so many.

    ``what`` says in words what it asks, ``note`` what to see in it, and ``refused`` is the code with
    which it should be refused. It takes ``at_least`` so many seconds; ``is_stopped`` if it should be
    stopped for other work in that time, and go on later.
    """

    team: str
    job: str
    what: str
    tags: Mapping[str, str] = field(default_factory=dict)
    op: str = "work"
    shards: int = 0
    note: str = ""
    refused: str | None = None
    at_least: float = 0.0
    is_stopped: bool = False

    @property
    def runs(self) -> int:
        """How many runs it becomes."""
        return self.shards or 1


def first_asks(shards: int) -> Sequence[DemoRun]:
    """A backfill, a team that borrows what is idle, and runs that no rule keeps."""
    return (
        DemoRun(
            "vision", "evaluate_all", f"a backfill of {shards} runs, 1 t4 each, exploratory",
            op="evaluation", shards=shards,
        ),
        *(DemoRun("vision", "train", "4 h100, or at least 2") for _ in range(3)),
        DemoRun("nlp", "prepare_corpus", "no GPU"),
        DemoRun("platform", "health_check", "no GPU"),
    )  # fmt: skip


def second_asks() -> Sequence[DemoRun]:
    """More than is left, of all tiers, once the first have their GPUs."""
    return (
        DemoRun("nlp", "finetune", "2 h100"),
        DemoRun(
            "platform", "restore_service", "4 h100, critical",
            note="critical: goes before all that waits",
        ),
        DemoRun(
            "nlp", "pretrain", "8 h100 on one node, standard", {TIER: "standard"},
            note="a gang: starts when a whole node is free, all or nothing",
        ),
        DemoRun(
            "vision", "smoke_test", "1 t4",
            note="one run beside its team's backfill, and not behind it",
        ),
        DemoRun(
            "nlp", "finetune", "1 t4 by its tags", {POOL: "t4", GPUS: "1"},
            note="another team's quota of t4, which the backfill had to leave",
        ),
        DemoRun("vision", "train", "4 h100, or at least 2"),
        DemoRun("nlp", "finetune", "2 h100"),
        DemoRun("nlp", "finetune", "2 h100"),
        DemoRun(
            "nlp", "finetune", "2 h100, and claims to be critical", {TIER: "critical"},
            refused="tier_not_allowed",
        ),
        DemoRun(
            "nlp", "pretrain", "32 h100, more than there are", {GPUS: "32"},
            refused="exceeds_pool",
        ),
        DemoRun(
            "vision", "train", "4 h100, and claims to be of team nlp", {TEAM: "nlp"},
            refused="invalid_request",
        ),
    )  # fmt: skip


def third_asks() -> Sequence[DemoRun]:
    """All that is idle, borrowed by one run that goes on for long."""
    return (
        DemoRun(
            "vision", "train_for_long", "12 h100, exploratory", op="epochs", at_least=24,
            is_stopped=True,
            note="borrowed: is told, saves, stops for the next, and goes on from its checkpoint",
        ),
    )  # fmt: skip


def last_asks() -> Sequence[DemoRun]:
    """What is guaranteed, and has been lent."""
    return (
        DemoRun(
            "nlp", "pretrain", "8 h100 on one node, milestone",
            note="gets back what its team has lent",
        ),
    )  # fmt: skip


class Web:
    """The demo's web server."""

    def __init__(self, port: int):
        self.address = f"http://{HOST}:{port}"
        # It is on this machine, whatever proxy leads to others.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def is_ready(self) -> bool:
        """Whether it serves."""
        try:
            with self._opener.open(f"{self.address}/server_info", timeout=5):
                return True
        except OSError:
            return False

    def launch(self, ask: DemoRun, seconds: float) -> str:
        """Submit one run.

        Returns:
            Its id.

        Raises:
            NotTaken: if it was not taken.
        """
        params = {
            "selector": {**_of(ask), "jobName": ask.job},
            "runConfigData": _config(ask, seconds),
            "executionMetadata": {
                "tags": [{"key": key, "value": value} for key, value in ask.tags.items()]
            },
        }
        result = self._ask(_LAUNCH_RUN, params, "launchRun", "LaunchRunSuccess", ask)
        return str(result["run"]["runId"])

    def backfill(self, ask: DemoRun, seconds: float) -> str:
        """Submit a backfill of the first shards.

        Returns:
            Its id, which its runs bear in a tag.

        Raises:
            NotTaken: if it was not taken.
        """
        params = {
            "selector": {
                "partitionSetName": f"{ask.job}_partition_set",
                "repositorySelector": _of(ask),
            },
            "partitionNames": [f"shard-{number:02d}" for number in range(ask.shards)],
            "runConfigData": _config(ask, seconds),
        }
        result = self._ask(
            _LAUNCH_BACKFILL, params, "launchPartitionBackfill", "LaunchBackfillSuccess", ask
        )
        return str(result["backfillId"])

    def _ask(self, query: str, params: Any, field_: str, success: str, ask: DemoRun) -> Any:
        body = json.dumps({"query": query, "variables": {"params": params}}).encode()
        request = urllib.request.Request(
            f"{self.address}/graphql", body, {"Content-Type": "application/json"}
        )
        try:
            with self._opener.open(request, timeout=_PATIENCE) as response:
                result = json.load(response)["data"][field_]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotTaken(
                f"The web server at {self.address} did not take {ask.team}'s {ask.job}: "
                f"{sentence(_said(error))}"
            ) from error
        if result["__typename"] != success:
            raise NotTaken(
                f"Dagster did not take {ask.team}'s {ask.job}: {result['__typename']}: "
                f"{sentence(_message(result))}"
            )
        return result


class Workload:
    """The asks of the demo: what is still to be submitted, and which runs have come of the rest."""

    def __init__(self, web: Web, seconds: float, shards: int):
        self._web = web
        self._seconds = seconds
        parts = (first_asks(shards), second_asks(), third_asks(), last_asks())
        self._parts = deque(deque(part) for part in parts)
        self._by_run: dict[str, DemoRun] = {}
        self._by_backfill: dict[str, DemoRun] = {}

    @property
    def expected(self) -> int:
        """How many runs there will be in all."""
        asks = [*chain(*self._parts), *self._by_run.values(), *self._by_backfill.values()]
        return sum(ask.runs for ask in asks)

    def submit_next(self, waiting: Collection[str] | None) -> DemoRun | None:
        """Submit one more, if it is time: each part waits until those before are served.

        Args:
            waiting: ids of the runs that wait for GPUs; None if that is not known.
        """
        if len(self._parts) > 1 and not self._parts[0] and waiting is not None:
            if any(run_id in waiting for run_id in self._by_run):
                return None
            self._parts.popleft()
        return self._submit(self._parts[0].popleft()) if self._parts[0] else None

    def ask_of(self, run_id: str, tags: Mapping[str, str]) -> DemoRun | None:
        """What a run was submitted for; None if somebody else has submitted it.

        A run that goes on with another's work was not submitted for anything.
        """
        if CONTINUES in tags:
            return None
        return self._by_run.get(run_id) or self._by_backfill.get(tags.get(BACKFILL_TAG, ""))

    def _submit(self, ask: DemoRun) -> DemoRun:
        if ask.shards:
            self._by_backfill[self._web.backfill(ask, self._seconds)] = ask
        else:
            seconds = max(self._seconds, ask.at_least)
            self._by_run[self._web.launch(ask, seconds)] = ask
        return ask


def _of(ask: DemoRun) -> dict[str, str]:
    """The example's code locations are named as the teams that own them."""
    return {"repositoryLocationName": ask.team, "repositoryName": _REPOSITORY}


def _config(ask: DemoRun, seconds: float) -> dict[str, Any]:
    return {"ops": {ask.op: {"config": {"seconds": seconds}}}}


def _said(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.read(500).decode(errors='replace')}"
    return f"{type(error).__name__}: {error}"


def _message(result: Mapping[str, Any]) -> str:
    errors = result.get("errors")
    if errors:
        return "; ".join(str(error["message"]) for error in errors)
    return str(result.get("message", ""))
