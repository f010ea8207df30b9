"""The daemon is a process that can die, be started twice, or be replaced."""

from __future__ import annotations

from site_of_processes import Site


def test_runs_go_on_after_the_daemon_was_killed(site: Site) -> None:
    site.start_daemon()
    first = site.launch("large")
    second = site.launch("large")
    plain = site.launch("plain")
    site.await_status(first, "STARTED")
    site.await_status(plain, "STARTED")
    site.await_(lambda: site.tag(second, "state") == "waiting", "the second to be told to wait")

    site.kill()
    third = site.launch("small")
    site.let_end(first)
    site.await_status(first, "SUCCESS")
    site.start_daemon()

    site.await_status(second, "STARTED")
    assert site.status(third) == "QUEUED"
    site.let_end()
    for run_id in (second, third, plain):
        site.await_status(run_id, "SUCCESS")
    site.await_(lambda: site.tag(third, "state") == "released", "the GPUs to be given back")
    assert [site.starts(run_id) for run_id in (first, second, third, plain)] == [1, 1, 1, 1]
    assert site.violations() == []


def test_a_second_daemon_stands_by_and_takes_over(site: Site) -> None:
    site.start_daemon()
    runs = [site.launch("large"), site.launch("large")]
    site.await_status(runs[0], "STARTED")
    site.start_daemon("second")
    site.await_(lambda: "stands by" in site.log("second"), "the second daemon to stand by")

    site.kill()
    site.let_end()
    for run_id in runs:
        site.await_status(run_id, "SUCCESS")
    assert [site.starts(run_id) for run_id in runs] == [1, 1]
    assert site.violations() == []
