"""Assets that bear our tags, materialized as the UI does it: the runs are gated like any others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster._core.test_utils import in_process_test_workspace
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster_graphql.client.query import LAUNCH_PIPELINE_EXECUTION_MUTATION
from dagster_graphql.test.utils import execute_dagster_graphql
from gate_stage import POLICY, Stage, stage_at

THE_IMPLICIT_JOB = "__ASSET_JOB"


class Ui:
    """Dagster's UI on a stage with a code location."""

    def __init__(self, stage: Stage, workspace: Any):
        self.workspace = workspace
        self._location = workspace.code_location_names[0]
        self.stage = stage

    def launch(self, *assets: str, job: str = THE_IMPLICIT_JOB, **tags: str) -> str:
        """Materialize assets, with these tags of ours on the run; its id."""
        selector: dict[str, Any] = {
            "repositoryLocationName": self._location,
            "repositoryName": "__repository__",
            "pipelineName": job,
        }
        if assets:
            selector["assetSelection"] = [{"path": [asset]} for asset in assets]
        given = [{"key": f"gpufair/{key}", "value": value} for key, value in tags.items()]
        result = execute_dagster_graphql(
            self.workspace,
            LAUNCH_PIPELINE_EXECUTION_MUTATION,
            {"executionParams": {"selector": selector, "executionMetadata": {"tags": given}}},
        )
        launched = result.data["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return launched["run"]["runId"]


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    home = tmp_path_factory.mktemp("assets")
    origin = LoadableTargetOrigin(
        executable_path=sys.executable,
        python_file=str(Path(__file__).with_name("stage_assets.py")),
        attribute="defs",
    )
    with (
        stage_at(home, {"sqlite": {"base_dir": str(home)}}, POLICY) as stage,
        in_process_test_workspace(stage.instance, origin) as workspace,
    ):
        yield Ui(stage, workspace)


def test_an_asset_that_needs_gpus_waits_for_them(ui: Ui) -> None:
    stage = ui.stage
    holds = stage.submit(team="red", pool="a100", gpus=8)
    stage.pass_()
    waits = ui.launch("large_model")
    stage.pass_()

    assert stage.tags(waits)["gpus"] == "8"
    assert stage.reason(waits) == "insufficient_gpus"
    request = stage.request(waits)
    assert request is not None and (request.gpus, request.pools) == (8000, ("a100",))
    stage.succeed(holds)
    stage.pass_()
    assert stage.launched[-1] == waits
    stage.succeed(waits)
    stage.pass_()
    stage.assert_nothing_lost()


@pytest.mark.parametrize("how", [{"job": "retrain"}, {"job": THE_IMPLICIT_JOB}])
def test_assets_of_one_run_share_the_most_that_one_needs(ui: Ui, how: dict[str, str]) -> None:
    assets = () if how["job"] == "retrain" else ("features", "model", "table")
    run_id = ui.launch(*assets, **how)

    request = ui.stage.request(run_id)
    assert request is not None and (request.gpus, request.pools) == (2000, ("t4",))
    assert ui.stage.status(run_id) == "QUEUED"


def test_assets_that_disagree_are_refused(ui: Ui) -> None:
    run_id = ui.launch("model", "large_model")

    assert ui.stage.status(run_id) == "FAILURE"
    said = ui.stage.events(run_id)
    assert "asset 'large_model' has gpufair/pool 'a100' and asset 'model' has 't4'" in said
    assert "let them agree, materialize them apart, or tag the run" in said
    assert ui.stage.history(run_id) == ["refused"]


def test_the_run_has_the_last_word(ui: Ui) -> None:
    settled = ui.launch("model", "large_model", pool="a100")
    own = ui.launch("model", "large_model", team="red", pool="t4", gpus="1")

    (of_settled, of_own) = (ui.stage.request(run_id) for run_id in (settled, own))
    assert of_settled is not None and (of_settled.gpus, of_settled.pools) == (8000, ("a100",))
    assert of_own is not None and (of_own.gpus, of_own.pools) == (1000, ("t4",))


def test_a_run_that_says_part_of_it_is_gated_on_the_rest(ui: Ui) -> None:
    run_id = ui.launch("anybodys", team="blue")

    request = ui.stage.request(run_id)
    assert request is not None and (request.team, request.gpus) == ("blue", 1000)


def test_a_misspelt_tag_of_an_asset_is_refused(ui: Ui) -> None:
    run_id = ui.launch("misspelt", team="red")

    assert ui.stage.status(run_id) == "FAILURE"
    assert "did you mean 'gpufair/gpus'?" in ui.stage.events(run_id)


def test_a_job_of_the_same_name_elsewhere_is_another(ui: Ui) -> None:
    run = ui.stage.create("retrain", location="elsewhere")

    ui.stage.instance.submit_run(run.run_id, ui.workspace)

    assert ui.stage.request(run.run_id) is None
    assert ui.stage.status(run.run_id) == "QUEUED"


def test_an_asset_without_gpus_is_dagsters_own_matter(ui: Ui) -> None:
    run_id = ui.launch("table")

    assert ui.stage.request(run_id) is None
    assert ui.stage.tags(run_id) == {}
    ui.stage.stock_pass()
    assert run_id in ui.stage.launched
