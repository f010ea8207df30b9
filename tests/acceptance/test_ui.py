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
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


def open_run(browser: Browser, site: Site, run_id: str) -> Page:
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.set_default_timeout(PATIENCE)
    page.goto(f"{site.url}/runs/{run_id}")
    return page


def test_the_page_of_a_waiting_run_says_why_it_waits(site: Site, browser: Browser) -> None:
    site.start_daemon()
    running = site.launch("large")
    site.await_status(running, "STARTED")
    waiting = site.launch("small")
    site.await_(lambda: site.tag(waiting, "reason"), "the run to be told")

    page = open_run(browser, site, waiting)
    expect(page.get_by_text("Waiting, 1st in a100").first).to_be_visible(timeout=PATIENCE)

    runs = browser.new_page(viewport={"width": 1800, "height": 1000})
    runs.goto(f"{site.url}/runs")
    expect(runs.get_by_text(waiting[:8]).first).to_be_visible(timeout=PATIENCE)


def test_text_from_outside_is_shown_and_never_run(site: Site, browser: Browser) -> None:
    site.start_daemon()
    evil = "<img src=x onerror=\"document.title='owned'\">'; DROP TABLE runs; --\n🙂"
    refused = site.launch("small", tier=evil)
    assert site.status(refused) == "FAILURE"

    page = open_run(browser, site, refused)
    expect(page.get_by_text("dagster-gpufair refused this run").first).to_be_visible(
        timeout=PATIENCE
    )
    assert page.title() != "owned"
    assert page.locator("img[src=x]").count() == 0
