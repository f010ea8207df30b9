"""GPUs are held by processes: what their runs' status says of them may be wrong."""

from __future__ import annotations

from pathlib import Path

from site_of_processes import Site

SLOW = """
import pathlib, sys, time
if any("spawn_main" in argument for argument in sys.orig_argv):
    slow = pathlib.Path(__file__).with_name("slow")
    if slow.exists():
        time.sleep(float(slow.read_text()))
"""
"""Python runs it at its start: the worker of a run takes its time to come."""


def test_a_worker_that_is_killed_with_its_code_server_gives_its_gpus_back(site: Site) -> None:
    """A code server that lives on would notice; this one is dead too, and no status ever changes."""
    site.start_daemon()
    killed = site.launch("large")
    site.await_status(killed, "STARTED")
    site.await_(lambda: site.has_seen_worker(killed), "its worker to be known")

    site.kill("code")
    site.kill_worker(killed)
    site.await_status(killed, "FAILURE")
    assert "its worker is gone: no process of it is left" in site.events(killed)
    site.start_code()

    waits = site.launch("large")
    site.await_status(waits, "STARTED")
    site.let_end()
    site.await_status(waits, "SUCCESS")
    assert site.violations() == []


def test_a_worker_that_goes_on_when_its_run_was_failed_keeps_its_gpus(site: Site) -> None:
    """So does Dagster's run monitoring, when a worker is slow to report: its processes go on."""
    site.start_daemon()
    failed, waits = site.launch("large"), site.launch("large")
    site.await_status(failed, "STARTED")
    site.await_(lambda: site.has_seen_worker(failed), "its worker to be known")
    site.await_(lambda: site.tag(waits, "state") == "waiting", "the other to be told to wait")

    run = site.instance.get_run_by_id(failed)
    assert run is not None
    site.instance.report_run_failed(run, "Run timed out due to taking longer than 180 s to start.")

    site.await_(lambda: "its processes hold" in site.tag(failed, "reason"), "it to be noticed")
    assert site.holders() == {failed}
    assert site.status(waits) == "QUEUED"
    site.let_end(failed)
    site.await_status(waits, "STARTED")
    assert site.holders() == {waits}


def test_a_launch_that_times_out_and_happens_all_the_same_happens_once(
    site: Site, tmp_path: Path
) -> None:
    """The call to the code server is not answered in time; its worker comes some seconds later."""
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    (tmp_path / "slow").write_text("9")
    site.kill("code")
    site.start_code(PYTHONPATH=str(tmp_path))
    site.start_daemon(DAGSTER_GRPC_TIMEOUT_SECONDS="3")
    slow, waits = site.launch("large"), site.launch("large")

    site.await_(lambda: "launch unanswered" in site.tag(slow, "reason"), "the call to time out")
    (tmp_path / "slow").write_text("0")
    assert site.status(slow) == "STARTING"
    assert site.holders() == {slow}

    site.await_status(slow, "STARTED")
    assert site.status(waits) == "QUEUED"
    site.let_end()
    for run_id in (slow, waits):
        site.await_status(run_id, "SUCCESS")
    assert [site.starts(run_id) for run_id in (slow, waits)] == [1, 1]
    assert site.violations() == []
