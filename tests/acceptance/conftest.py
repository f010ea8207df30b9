"""Whole processes for a test, ended with it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from site_of_processes import Site


@pytest.fixture
def site() -> Iterator[Site]:
    """Code server and web server; tests start the daemon themselves."""
    home = Path(tempfile.mkdtemp(prefix="gpufair-site-"))
    site = Site(home)
    try:
        yield site
    finally:
        site.close()
        shutil.rmtree(home, ignore_errors=True)
