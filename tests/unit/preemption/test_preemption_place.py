"""Where code finds its channel and its checkpoints: by the environment, by Dagster, or nowhere."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import dagster as dg
import pytest

from dagster_gpufair.gate.submission.tags import CONTINUES
from dagster_gpufair.preemption import channel_env, checkpoint_dir, checkpointed
from dagster_gpufair.preemption.dagster_step import CONTINUES_TAG, current_step
from dagster_gpufair.preemption.files import folder_name
from dagster_gpufair.preemption.place import find_place


def test_the_tag_is_the_gates() -> None:
    assert CONTINUES_TAG == CONTINUES


def test_outside_of_dagster_checkpoints_are_in_the_current_folder(tmp_path) -> None:
    assert checkpoint_dir() == tmp_path / "gpufair-checkpoints"
    assert checkpoint_dir().is_dir()
    assert channel_env() == {"GPUFAIR_CHECKPOINT_DIR": str(tmp_path / "gpufair-checkpoints")}


def test_the_folder_for_checkpoints_can_be_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GPUFAIR_CHECKPOINT_DIR", "mine/here")
    assert checkpoint_dir() == tmp_path / "mine" / "here"
    assert checkpoint_dir().is_dir()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPUFAIR_CHECKPOINT_DIR", str(tmp_path / "file" / "here"))
    with pytest.raises(OSError, match="Not a directory"):
        checkpoint_dir()


def test_the_lease_says_where_checkpoints_are(channel, tmp_path) -> None:
    channel.put("lease.json", {"schema": 1, "checkpoint_dir": str(tmp_path / "q1")})
    assert checkpoint_dir() == tmp_path / "q1"


@pytest.mark.parametrize("lease", ["", "[]", '{"checkpoint_dir": 5}', '{"checkpoint_dir": ""}'])
def test_without_a_lease_that_says_so_they_are_where_it_would(channel, tmp_path, lease) -> None:
    channel.put("lease.json", lease)
    assert checkpoint_dir() == tmp_path / "checkpoints" / "run1"


def test_a_subprocess_is_in_the_same_place(channel, tmp_path, monkeypatch) -> None:
    channel.put("lease.json", {"checkpoint_dir": str(tmp_path / "q1")})
    monkeypatch.setenv("GPUFAIR_STEP", "train")
    here, env = find_place(), channel_env()
    for name in ("GPUFAIR_CHANNEL", "GPUFAIR_STEP"):
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    there = find_place()
    assert (there.channel, there.step) == (here.channel, here.step)
    assert there.checkpoint_folder() == here.checkpoint_folder() == tmp_path / "q1" / "train"


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("train", True),
        ("graph.train[a_1]", True),
        ("../../etc", False),
        ("a/b", False),
        (".hidden", False),
        ("", True),
        ("ü" * 300, False),
        ("a" * 500, False),
    ],
)
def test_whatever_a_step_is_called_its_folder_is_one_folder(name, same) -> None:
    folder = folder_name(name)
    assert (folder == name) is same
    assert "/" not in folder
    assert not folder.startswith(".")
    assert len(folder.encode()) < 200


def test_names_that_look_alike_have_folders_of_their_own() -> None:
    assert folder_name("a/b") != folder_name("a?b")
    assert folder_name("a" * 500) != folder_name("a" * 501)


# -- in Dagster ---------------------------------------------------------------------------------


@pytest.fixture
def instance(tmp_path):
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


@pytest.fixture(autouse=True)
def settings(tmp_path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")


def found_in(instance, look, *, tags=None, name="train"):
    """What code in an op finds, and the op's run id."""
    found = []

    @dg.op(name=name)
    def step() -> None:
        found.append(look())

    @dg.job(tags=tags or {})
    def job() -> None:
        step()

    result = job.execute_in_process(instance=instance)
    return found[0], result.run_id


def test_a_step_has_its_runs_channel_and_a_folder_of_its_own(instance, tmp_path) -> None:
    found, run_id = found_in(instance, find_place)
    assert found.channel == tmp_path / "gpufair" / "channels" / run_id
    assert found.step == "train"
    assert found.checkpoint_folder() == tmp_path / "gpufair" / "checkpoints" / run_id / "train"


def test_an_asset_has_them_too(instance, tmp_path) -> None:
    found = []

    @dg.asset
    def model() -> None:
        found.append(find_place())

    result = dg.materialize([model], instance=instance)
    assert found[0].channel == tmp_path / "gpufair" / "channels" / result.run_id
    assert found[0].step == "model"


def test_a_run_that_goes_on_with_anothers_work_has_its_checkpoints(instance, tmp_path) -> None:
    tags = {CONTINUES_TAG: "request/one/2"}
    found, _ = found_in(instance, checkpoint_dir, tags=tags)
    assert found == tmp_path / "gpufair" / "checkpoints" / folder_name("request/one") / "train"


def test_channels_may_be_elsewhere(instance, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GPUFAIR_CHANNELS", str(tmp_path / "shared" / "channels"))
    found, run_id = found_in(instance, find_place)
    assert found.channel == tmp_path / "shared" / "channels" / run_id
    assert found.checkpoints == tmp_path / "shared" / "checkpoints" / run_id / "train"


def test_the_environment_comes_first(instance, channel) -> None:
    found, _ = found_in(instance, find_place)
    assert found.channel == channel.folder


def test_threads_of_a_step_are_in_its_place(instance, tmp_path) -> None:
    def in_a_thread():
        here, there = find_place(), []
        thread = threading.Thread(target=lambda: there.append(find_place()))
        thread.start()
        thread.join()
        return here, there[0]

    (here, there), _ = found_in(instance, in_a_thread)
    assert here == there
    assert here.channel is not None


def test_after_its_step_a_process_is_nowhere(instance) -> None:
    found_in(instance, find_place)
    assert current_step() is None
    assert find_place().channel is None


def test_a_run_that_is_not_under_the_gate_says_nothing(instance, tmp_path) -> None:
    found_in(instance, checkpointed)
    assert not (tmp_path / "gpufair").exists()


def test_an_instance_in_memory_keeps_checkpoints_for_as_long_as_it_lasts(tmp_path) -> None:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        found, _ = found_in(ephemeral, checkpoint_dir)
        assert found.is_dir()
        assert Path(ephemeral.root_directory) in found.parents


def test_it_can_be_imported_where_nothing_is_installed() -> None:
    code = (
        "import sys; from dagster_gpufair import preemption; assert not preemption.should_stop(); "
        "print(*sys.modules)"
    )
    here = Path(__file__).parents[3]
    # No site-packages: the standard library and this package's folder.
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(here)!r}); {code}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "dagster_gpufair.preemption.notices" in done.stdout.split()
    assert "dagster" not in done.stdout.split()
