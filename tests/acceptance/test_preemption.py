"""Running work is stopped for other work, after notice, and goes on later: with real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from site_of_processes import Site

from dagster_gpufair.ledger import requests
from dagster_gpufair.ledger.connect import ledger_of

POLICY = """
pools: {a100: {gpus: 2}}
teams: {red: {quota: {a100: 2}}, blue: {}}
preemption: {mode: auto, grace: 3s, min_runtime: 0s}
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, policy=POLICY)
    try:
        yield site
    finally:
        site.close()


def test_borrowed_work_is_stopped_for_its_owner_and_goes_on_later(site: Site) -> None:
    site.start_daemon()
    stopped = site.launch("trains")
    site.await_(lambda: "STEP_START" in steps(site, stopped, "train"), "the training to begin")

    asks = site.launch("large")
    site.await_(lambda: "stopped at" in site.tag(stopped, "reason"), "it to be given notice")
    assert site.tag(asks, "reason").startswith("preempting")
    site.await_status(asks, "STARTED")
    assert site.status(stopped) == "CANCELED"
    site.await_(lambda: site.tag(stopped, "state") == "preempted", "its page to say so")
    assert "reclaim" in site.tag(stopped, "reason")

    goes_on = run_of(site, stopped)
    site.await_(lambda: run_of(site, stopped) != stopped, "a run that goes on")
    goes_on = run_of(site, stopped)
    site.await_status(goes_on, "QUEUED")
    assert site.holders() == {asks}
    site.let_end(asks)
    site.await_(lambda: "STEP_START" in steps(site, goes_on, "train"), "the training to go on")
    assert steps(site, goes_on, "prepare") == []
    site.let_end()
    site.await_status(goes_on, "SUCCESS")
    site.await_(lambda: not site.holders(), "all GPUs to be free")
    assert site.violations() == []


def test_code_that_saves_is_stopped_at_once_and_goes_on_from_its_checkpoint(site: Site) -> None:
    """Long before its deadline: it says that all is saved."""
    site.policy_file.write_text(POLICY.replace("grace: 3s", "grace: 10m"))
    site.start_daemon()
    stopped = site.launch("learns")
    site.await_(lambda: "goes on from step 0" in site.said(stopped), "the training to begin")
    asks = site.launch("large")
    site.await_status(asks, "STARTED")
    assert site.status(stopped) == "CANCELED"
    site.await_(lambda: "its last checkpoint was at" in site.events(stopped), "its page to say so")
    site.let_end(asks)
    site.await_(lambda: run_of(site, stopped) != stopped, "a run that goes on")
    goes_on = run_of(site, stopped)
    site.await_(lambda: "goes on from step" in site.said(goes_on), "the training to go on")
    assert "goes on from step 0" not in site.said(goes_on)
    site.let_end()
    site.await_status(goes_on, "SUCCESS")
    assert site.violations() == []


def steps(site: Site, run_id: str, step: str) -> list[str]:
    """What happened to a step in a run."""
    return [
        log.dagster_event.event_type_value
        for log in site.instance.all_logs(run_id)
        if log.dagster_event is not None and log.step_key == step
    ]


def run_of(site: Site, first: str) -> str:
    """The run that a request is for now, by its first run."""
    with ledger_of(site.instance).reading() as session:
        return requests.by_ids(session, [first])[first].run_id
