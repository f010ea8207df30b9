"""What a person sees in the Dagster UI, in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from site_of_processes import Site

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
PATIENCE = 60_000
"""Milliseconds."""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


def open_run(browser: Browser, site: Site, run_id: str) -> Page:
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.set_default_timeout(PATIENCE)
    # The first visit to an instance opens a dialog over the page.
    page.add_locator_handler(page.get_by_role("button", name="Skip"), lambda skip: skip.click())
    page.goto(f"{site.url}/runs/{run_id}")
    return page


def test_the_ui_says_why_a_run_waits_and_why_it_started(site: Site, browser: Browser) -> None:
    site.start_daemon()
    running = site.launch("large")
    site.await_status(running, "STARTED")
    waiting = site.launch("small")
    site.await_(lambda: site.tag(waiting, "reason"), "the run to be told")

    # While a run is queued, Dagster's page of it shows tags but no event log.
    page = open_run(browser, site, waiting)
    page.get_by_role("button", name="View tags and config").click()
    expect(page.get_by_text("insufficient_gpus · 1st in a100").first).to_be_visible()
    page.goto(f"{site.url}/runs")
    expect(page.get_by_text(waiting[:8]).first).to_be_visible()
    expect(page.get_by_text("gpufair/reason: insufficient_gpus · 1st in a100")).to_be_visible()

    site.let_end(running)
    site.await_status(waiting, "STARTED")
    page = open_run(browser, site, waiting)
    expect(page.get_by_text("Waiting, 1st in a100").first).to_be_visible()
    expect(page.get_by_text("Granted 1 × a100").first).to_be_visible()


def test_text_from_outside_is_shown_and_never_run(site: Site, browser: Browser) -> None:
    site.start_daemon()
    evil = "<img src=x onerror=\"document.title='owned'\">'; DROP TABLE runs; --\n🙂"
    refused = site.launch("small", tier=evil)
    assert site.status(refused) == "FAILURE"

    page = open_run(browser, site, refused)
    expect(page.get_by_text("dagster-gpufair refused this run").first).to_be_visible()
    assert page.title() != "owned"
    assert page.locator("img[src=x]").count() == 0
