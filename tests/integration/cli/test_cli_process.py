"""``gpufair`` as a process of its own, with its output in a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_samples import POLICY, Filling, asked

from dagster_gpufair import __version__


def gpufair(*words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "dagster_gpufair.cli.main", *words]
    return subprocess.run(command, capture_output=True, timeout=120, env={**os.environ, **env})


def test_a_queue_in_a_pipe_that_lacks_some_signs(queue: Filling) -> None:
    queue.submit(asked(1, 20, project="发射"))
    result = gpufair("queue", PYTHONIOENCODING="latin-1", PYTHONUTF8="0", COLUMNS="60")
    assert (result.returncode, result.stderr) == (0, b"")
    said = result.stdout.decode("latin-1")
    assert "h100 · 16 GPUs" in said
    assert "nlp/\\u53d1\\u5c04" in said
    row = next(line for line in said.splitlines() if "00000001" in line)
    assert row.startswith("1  00000001  nlp/\\u53d1\\u5c04  train")
    assert "nlp uses none of its quota of 8" in " ".join(said.split())
    assert max(len(line) for line in said.splitlines()) <= 60
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


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (["--help"], "dagster sqlalchemy pydantic rich"),
        (["--version"], "dagster sqlalchemy pydantic rich"),
        (["decide", "case.yaml"], "dagster sqlalchemy"),
        (["policy", "check", "gpufair.yaml"], "dagster sqlalchemy"),
        (["policy", "schema"], "dagster sqlalchemy rich"),
        (["init", "new"], "dagster sqlalchemy"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_no_command_imports_what_it_does_not_need(
    words: list[str], unused: str, tmp_path: Path
) -> None:
    """Dagster takes more than a second, the others a third of one each."""
    (tmp_path / "gpufair.yaml").write_text(POLICY)
    (tmp_path / "case.yaml").write_text("policy: gpufair.yaml\nqueued: []\n")
    code = (
        f"import sys; from dagster_gpufair.cli.main import main; sys.argv = {['gpufair', *words]}\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        f"assert not set(sys.modules) & set({unused.split()}), set(sys.modules) & set({unused.split()})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("words", [["queue"], ["policy", "check", "gpufair.yaml"]], ids=" ".join)
def test_what_a_command_imports_is_not_searched_for_garbage(
    queue: Filling, words: list[str], tmp_path: Path
) -> None:
    """It would take a third of the command's time: while modules are imported, and again at the end."""
    (tmp_path / "gpufair.yaml").write_text(POLICY)
    code = (
        f"import gc, sys; from dagster_gpufair.cli.main import main; sys.argv = {['gpufair', *words]}\n"
        "searched = lambda: sum(each['collections'] for each in gc.get_stats())\n"
        "before = searched()\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        "assert searched() - before <= 1, searched() - before\n"
        "assert gc.get_freeze_count() > len(gc.get_objects())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_policy_is_read_without_the_source_of_its_sections() -> None:
    """Only the JSON Schema shows the texts under their fields."""
    code = (
        "import linecache; from dagster_gpufair.policy.loading import parse_policy\n"
        f"parse_policy({POLICY!r}); assert not linecache.cache, list(linecache.cache)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_tags_need_no_dagster() -> None:
    code = "import sys; from dagster_gpufair import gpu_tags; assert 'dagster' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_json_in_a_pipe(queue: Filling) -> None:
    assert json.loads(gpufair("pools", "--json").stdout)["pools"][0]["gpus"] == 16
    assert __version__.encode() in gpufair("--version").stdout
