"""The daemon is killed at any moment of a pass, and the next one brings everything right."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

from gate_scene import POLICY, Scene, at_moment
from gate_stage import Stage, in_child

OpenStage = Callable[..., Stage]


def is_over_when_killed_at(stage: Stage, moment: int) -> bool:
    """One pass in a process that is killed there; whether the pass was over before."""

    def pass_() -> None:
        with at_moment(moment, lambda: os._exit(9)):
            stage.pass_(stage.new_daemon())

    code = in_child(pass_)
    assert code in (0, 9)
    return code == 0


def assert_a_new_daemon_brings_it_right(scene: Scene) -> None:
    scene.stage.daemon = scene.stage.new_daemon()
    scene.stage.pass_()
    scene.stage.pass_()
    scene.assert_brought_right()


def test_killed_at_any_moment_on_sqlite(open_stage: OpenStage, tmp_path: Path) -> None:
    stage = open_stage(POLICY, max_user_code_failure_retries=9)
    scene = Scene(stage)
    kept = tmp_path.with_name("kept")
    stage.ledger.dispose()
    shutil.copytree(tmp_path, kept)

    for moment in count(1):
        over = is_over_when_killed_at(stage, moment)
        assert_a_new_daemon_brings_it_right(scene)
        if moment % 3 == 0:
            scene.finish()
        if over:
            break
        stage.end_daemon()
        stage.ledger.dispose()
        shutil.rmtree(tmp_path)
        shutil.copytree(kept, tmp_path)
        stage.launcher.unreachable.add("gone")
    assert moment > 40


def test_killed_at_many_moments_on_postgres(open_stage_on_postgres: OpenStage) -> None:
    stage = open_stage_on_postgres(POLICY, max_user_code_failure_retries=9)

    for moment in count(3, step=17):
        scene = Scene(stage)
        over = is_over_when_killed_at(stage, moment)
        assert_a_new_daemon_brings_it_right(scene)
        scene.finish()
        if over:
            break
    assert moment > 40
