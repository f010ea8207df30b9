"""The run coordinator: what happens when a run is submitted.

A run without GPUs takes Dagster's own path. A run with GPUs becomes a request in the ledger, is marked,
and is queued; one that can never start is failed at once, with a sentence that says why.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from dagster import (
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Field,
    QueuedRunCoordinator,
    StringSource,
    SubmitRunContext,
)
from typing_extensions import Self

from dagster_gpufair.engine.policy_file import (
    DEFAULT_POLICY_FILE,
    PolicyWatch,
    find_policy_file,
)
from dagster_gpufair.gate.dagster_internals import (
    ConfigurableClassData,
    RunQueueConfig,
    asset_tags_of,
    close_instance_limits,
    close_tag_limits,
    install_daemon,
    location_of,
)
from dagster_gpufair.gate.submission.admission import Refusal, Submission
from dagster_gpufair.gate.submission.recording import record
from dagster_gpufair.gate.submission.refusing import refuse
from dagster_gpufair.gate.submission.tags import (
    CONTINUES,
    GPUS,
    MARKS,
    STATE_TAGS,
    InvalidAsk,
    asks_for_gpus,
    state_tags,
    tags_of_assets,
)
from dagster_gpufair.ledger.connect import LedgerError, ledger_of
from dagster_gpufair.ledger.requests import by_runs
from dagster_gpufair.policy.problems import PolicyError


class GpuFairRunCoordinator(QueuedRunCoordinator):
    """Dagster's queued run coordinator with GPU quotas.

    Takes every option of ``QueuedRunCoordinator``, meaning the same, and ``policy``: the policy file,
    relative to ``dagster.yaml`` or to the current folder (default ``gpufair.yaml``); ``on_event``: a
    function, ``module:function``, that the daemon calls with each `gate.alerts.Alert`.
    """

    def __init__(
        self, policy: str = DEFAULT_POLICY_FILE, on_event: str | None = None, **stock: Any
    ):
        self._policy_setting = policy
        self.on_event = on_event
        self._watch: PolicyWatch | None = None
        super().__init__(**stock)

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        stock: Any = super().config_type()
        return {
            **stock,
            "policy": Field(
                StringSource,
                is_required=False,
                default_value=DEFAULT_POLICY_FILE,
                description="The GPU policy file, relative to dagster.yaml or the current folder.",
            ),
            "on_event": Field(
                StringSource,
                is_required=False,
                description="A function, module:function, that is told of notices, stops and the like.",
            ),
        }

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]
    ) -> Self:
        return cls(inst_data=inst_data, **config_value)

    def register_instance(self, instance: DagsterInstance) -> None:
        # The daemon module knows this class, so it can only be imported once this one is there.
        from dagster_gpufair.gate.queue.daemon import GpuFairQueueDaemon

        super().register_instance(instance)
        close_instance_limits(instance, MARKS)
        install_daemon(GpuFairQueueDaemon)

    def get_run_queue_config(self) -> RunQueueConfig:
        """The stock configuration, in which nothing that bears one of our marks starts.

        Only our queue daemon takes that limit away, so a GPU run never starts ungated under another.
        """
        config = super().get_run_queue_config()
        return config._replace(
            tag_concurrency_limits=close_tag_limits(config.tag_concurrency_limits, MARKS)
        )

    @property
    def policy_watch(self) -> PolicyWatch:
        """The policy file of this instance, and the policy in force."""
        if self._watch is None:
            path = find_policy_file(self._policy_setting, self._instance.root_directory)
            self._watch = PolicyWatch(path)
        return self._watch

    def submit_run(self, context: SubmitRunContext) -> DagsterRun:
        run = context.dagster_run
        if run.status != DagsterRunStatus.NOT_STARTED:
            return super().submit_run(context)
        from_assets, refusal = self._said_by_assets(context)
        tags = {**from_assets, **run.tags}
        if refusal is None and not asks_for_gpus(tags):
            return super().submit_run(context)
        submission = Submission(run.run_id, run.job_name, location_of(run), tags, at=time.time())
        refusal = self._record(submission, refusal)
        if refusal is not None:
            return refuse(self._instance, run, refusal)
        ours = dict(from_assets)
        # A tag write costs a fourth of a submission: the daemon's first word on the run brings the
        # state, unless the run has no mark yet, or a state that is its parent's.
        if GPUS not in tags or any(key in tags for key in STATE_TAGS):
            ours |= state_tags("waiting", "submitted", "The daemon has not looked at it yet.")
        if ours:
            self._instance.add_run_tags(run.run_id, ours)
        return super().submit_run(context)

    def _said_by_assets(self, context: SubmitRunContext) -> tuple[dict[str, str], Refusal | None]:
        """What the assets of a run that asks for no GPUs itself ask for, or why they cannot together."""
        run = context.dagster_run
        if context.workspace is None or asks_for_gpus(run.tags):
            return {}, None
        try:
            return tags_of_assets(asset_tags_of(context.workspace, run), run.tags), None
        except InvalidAsk as error:
            return {}, Refusal("invalid_request", str(error))

    def _record(self, submission: Submission, refusal: Refusal | None) -> Refusal | None:
        """Write the request, or the refusal, into the ledger.

        When that cannot be done now, the run is queued all the same, marked: it starts nowhere, and
        the daemon records it as soon as there is a ledger and a policy.

        Args:
            refusal: why it is refused whatever the policy says.
        """
        watch = self.policy_watch
        # The file may hang, so it is read before the ledger is locked.
        seen = None if watch.has_seen_one_in_force else watch.look()
        try:
            with ledger_of(self._instance).writing() as session:
                if CONTINUES in submission.tags and submission.run_id in by_runs(
                    session, [submission.run_id]
                ):
                    return None  # it goes on with what was stopped: the request is there already
                in_force = watch.in_force(session)
                if in_force is None and seen is not None:
                    watch.adopt(session, seen, submission.at, by="first submission")
                    in_force = watch.in_force(session)
                if in_force is None:
                    self._logger.warning(
                        "Run %s waits: no GPU policy is in force yet (%s)",
                        submission.run_id,
                        watch.path,
                    )
                    return refusal
                result = record(session, in_force, submission, refusal)
                return result if isinstance(result, Refusal) else None
        except (LedgerError, PolicyError) as error:
            self._logger.error("Run %s is not in the GPU ledger: %s", submission.run_id, error)
            return refusal
