"""``gpufair`` as a process of its own, with its output in a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from cli_samples import Filling, asked

from dagster_gpufair import __version__


def gpufair(*words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "dagster_gpufair.cli.main", *words]
    return subprocess.run(command, capture_output=True, timeout=120, env={**os.environ, **env})


def test_a_queue_in_a_pipe_that_lacks_some_signs(queue: Filling) -> None:
    queue.submit(asked(1, 20, project="发射"))
    result = gpufair("queue", PYTHONIOENCODING="latin-1", PYTHONUTF8="0", COLUMNS="20")
    assert (result.returncode, result.stderr) == (0, b"")
    said = result.stdout.decode("latin-1")
    assert "h100 · 16 GPUs" in said
    assert "nlp/\\u53d1\\u5c04" in said
    row = next(line for line in said.splitlines() if "00000001" in line)
    assert row.endswith("nlp uses 0 of its 8, and may borrow 4 at most")
    assert "\x1b" not in said


@pytest.mark.parametrize("words", [["nonsense"], ["queue", "--nonsense"], ["explain"]])
def test_what_cannot_be_meant(words: list[str]) -> None:
    result = gpufair(*words)
    assert result.returncode == 2
    assert result.stderr.startswith(b"Usage: gpufair ")


def test_what_fails_leaves_standard_output_alone(queue: Filling) -> None:
    result = gpufair("explain", "feedbeef", "--json")
    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr.startswith(b"Error: No run of this Dagster instance")


def test_help_and_version_need_no_dagster() -> None:
    code = (
        "import sys; from dagster_gpufair.cli.main import main; sys.argv = ['gpufair', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert 'dagster' not in sys.modules, 'importing Dagster takes a second'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    for command in (
        b"queue",
        b"explain",
        b"pools",
        b"teams",
        b"cordon",
        b"policy",
        b"init",
        b"demo",
    ):
        assert command in done.stdout


def test_json_in_a_pipe(queue: Filling) -> None:
    assert json.loads(gpufair("pools", "--json").stdout)["pools"][0]["gpus"] == 16
    assert __version__.encode() in gpufair("--version").stdout
