"""From the submission of what preempts to its start, and what is lost with and without a checkpoint.

python tests/benchmarks/run_preemption.py [--times 10] [--grace 5]

A whole Dagster of processes (code server, web server, daemon). Each time a borrowed training run that holds
the pool is stopped for its owner's. Medians: from the submission of the owner's run to its grant, which is
what preemption takes; from there to its start, which is its launch; and the work that was lost, with and
without `checkpointed()`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "acceptance"))

from site_of_processes import Site

from dagster_gpufair.ledger import leases, requests
from dagster_gpufair.ledger.connect import ledger_of
from dagster_gpufair.ledger.leases import LeaseRecord

POLICY = """
pools: {{a100: {{gpus: 2}}}}
teams: {{red: {{quota: {{a100: 2}}}}, blue: {{}}}}
preemption: {{mode: auto, grace: {grace}s, min_runtime: 0s}}
"""


def of_run(site: Site, run_id: str) -> LeaseRecord:
    with ledger_of(site.instance).reading() as session:
        return leases.of_run(session, run_id)[-1]


def measure(
    times: int, grace: float, job: str, jobs: Path
) -> tuple[list[float], list[float], list[float]]:
    """Seconds to the grant, from there to the start, and GPU-seconds lost, each time."""
    granted, started, lost = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder), policy=POLICY.format(grace=grace), jobs=jobs)
        try:
            site.start_daemon()
            for _ in range(times):
                borrows = site.launch(job)
                site.await_(lambda id_=borrows: "STEP_START" in _kinds(site, id_), "the training")
                site.await_(lambda id_=borrows: of_run(site, id_).began_at, "its lease to begin")
                asks = site.launch("large")
                site.await_status(asks, "STARTED")
                record = site.instance.get_run_record_by_id(asks)
                assert record is not None and record.start_time is not None
                with ledger_of(site.instance).reading() as session:
                    submitted = requests.by_ids(session, [asks])[asks].submitted_at
                lease, stopped = of_run(site, asks), of_run(site, borrows)
                granted.append(lease.started_at - submitted)
                started.append(record.start_time - lease.started_at)
                over = stopped.released_at or 0.0
                lost.append((over - stopped.to_lease().since_saved) * stopped.gpus / 1000)
                # The run that goes on is not wanted here.
                site.await_(lambda id_=borrows: _next(site, id_), "the run that goes on")
                site.instance.run_coordinator.cancel_run(_next(site, borrows) or "")
                site.let_end(asks)
                site.await_status(asks, "SUCCESS")
        finally:
            site.close()
    return granted, started, lost


def _next(site: Site, run_id: str) -> str | None:
    """The run that goes on, once it waits."""
    with ledger_of(site.instance).reading() as session:
        request = requests.by_ids(session, [run_id])[run_id]
    return request.run_id if request.run_id != run_id and request.continues is None else None


def _kinds(site: Site, run_id: str) -> set[str]:
    logs = site.instance.all_logs(run_id)
    return {log.dagster_event.event_type_value for log in logs if log.dagster_event is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--grace", type=float, default=5)
    given = parser.parse_args()
    jobs = Path(__file__).resolve().parent.parent / "acceptance" / "jobs.py"
    for job, says in (("trains", "without checkpointed()"), ("saves", "with checkpointed()")):
        granted, started, lost = measure(given.times, given.grace, job, jobs)
        print(
            f"{says}: medians of {given.times}: {statistics.median(granted):.2f} s from submission to grant "
            f"(grace {given.grace:g} s; {min(granted):.2f} to {max(granted):.2f}), "
            f"{statistics.median(started):.2f} s more to its start, "
            f"{statistics.median(lost):.1f} GPU-seconds lost"
        )


if __name__ == "__main__":
    main()
