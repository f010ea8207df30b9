"""The examples of docs/preemption.md do what they say, as far as what they need is installed."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dagster_gpufair import preemption
from dagster_gpufair.preemption import files, should_stop

DOCS = Path(__file__).parents[3] / "docs" / "preemption.md"
LONG = 60.0


def examples(language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCS.read_text(), re.M | re.S)


def example(title: str, language: str = "python") -> str:
    section = DOCS.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.M | re.S)[0]


@pytest.mark.parametrize("code", examples())
def test_what_is_imported_is_there(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module == preemption.__name__:
            assert {each.name for each in node.names} <= set(preemption.__all__)


def test_every_call_and_every_file_is_described() -> None:
    text = DOCS.read_text()
    for name in preemption.__all__:
        assert f"| `{name}(" in text
    for name in (files.LEASE, files.NOTICE, files.CHECKPOINTED, files.BUSY, files.STOP_HERE):
        assert f"| `{name}` |" in text


@contextmanager
def spared_once_it_has_answered(channel: Any, answer: str = files.STOP_HERE) -> Iterator[None]:
    """Under notice; the notice is taken back when the code says that all is saved."""
    over = threading.Event()

    def spare() -> None:
        while not over.wait(0.01):
            if (channel.folder / answer).exists():
                channel.spare()
                return

    channel.put("lease.json", {"schema": 1})
    channel.notify(2e9)
    thread = threading.Thread(target=spare)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_pytorch(channel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setenv("GPUFAIR_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    made: dict[str, Any] = {}
    exec(example("PyTorch"), made)
    fit: Callable[..., None] = made["fit"]

    def parts() -> tuple[Any, Any, Callable[[Any, int], Any], list[int]]:
        torch.manual_seed(0)
        model, steps = torch.nn.Linear(1, 1), []

        def loss_of(model: Any, step: int) -> Any:
            steps.append(step)
            return model(torch.ones(1)).pow(2).sum()

        return model, torch.optim.Adam(model.parameters()), loss_of, steps

    model, optimizer, loss_of, steps = parts()
    with spared_once_it_has_answered(channel):
        fit(model, optimizer, loss_of, 3)
    assert steps == [0, 1, 2]
    assert "model.pt" in channel.said("checkpointed.json")["path"]

    again, optimizer, loss_of, steps = parts()
    fit(again, optimizer, loss_of, 5)
    assert steps == [3, 4]


def test_the_shell_without_the_package(channel: Any, tmp_path: Path) -> None:
    script = f"""
train_one_step() {{ echo step >> steps; [ "$(wc -l < steps)" -lt 3 ]; }}
save_to() {{ cp steps "$1/saved"; }}
sleep() {{ command sleep 0.01; }}
{example("Shell, or any code without the package", "sh")}
"""
    (tmp_path / "checkpoints").mkdir()
    env = {
        "PATH": "/usr/bin:/bin",
        "GPUFAIR_CHANNEL": str(channel.folder),
        "GPUFAIR_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
    }
    with spared_once_it_has_answered(channel):
        subprocess.run(["sh", "-eu", "-c", script], env=env, cwd=tmp_path, check=True, timeout=LONG)

    assert (tmp_path / "checkpoints" / "saved").read_text() == "step\n"
    assert (tmp_path / "steps").read_text() == "step\n" * 3


def test_a_subprocess(channel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(
        "from dagster_gpufair.preemption import *\n"
        "assert should_stop()\n"
        "(checkpoint_dir() / 'model.pt').touch()\n"
        "stop_here()\n"
    )
    monkeypatch.setenv("GPUFAIR_STEP", "train")
    code = example("Subprocess").replace('"python"', json.dumps(sys.executable))

    with spared_once_it_has_answered(channel, "stop_here.train.json"):
        channel.put("lease.json", {"checkpoint_dir": str(tmp_path / "q1")})
        exec(code, {})

    assert (tmp_path / "q1" / "train" / "model.pt").exists()
    assert not should_stop()
