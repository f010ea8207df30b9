"""What tags may say, and that the helper and the reader hold to the same rules."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_gpufair.gate.submission.tags import (
    USER_TAGS,
    InvalidAsk,
    RunTags,
    asks_for_gpus,
    gpu_tags,
    parse_ask,
    tags_of_assets,
)

ODD = ["it's", "x'); DROP TABLE x; --", "[b]x[/b]", "one\ntwo", "🦑", "nul\x00", "x" * 10_000]


@pytest.mark.parametrize(
    ("given", "ask"),
    [
        ({"gpus": 8}, RunTags(gpus=8000)),
        ({"gpus": 0.5}, RunTags(gpus=500)),
        ({"gpus": "4-8"}, RunTags(gpus=8000, min_gpus=4000)),
        ({"gpus": "8-8"}, RunTags(gpus=8000)),
        ({"gpus": 16, "gpus_per_node": 8}, RunTags(gpus=16_000, gpus_per_node=8000)),
        ({"gpus": 1, "pool": "h100"}, RunTags(gpus=1000, pools=("h100",))),
        ({"gpus": 1, "pool": ["h100", "a100"]}, RunTags(gpus=1000, pools=("h100", "a100"))),
        ({"gpus": 1, "pool": "h100, a100"}, RunTags(gpus=1000, pools=("h100", "a100"))),
        (
            {"gpus": 1, "max_duration": "90m"},
            RunTags(gpus=1000, max_duration=timedelta(minutes=90)),
        ),
        (
            {"gpus": 1, "max_duration": timedelta(days=30, microseconds=500_000)},
            RunTags(gpus=1000, max_duration=timedelta(days=30, microseconds=500_000)),
        ),
        (
            {"gpus": 1, "max_duration": timedelta(days=2, seconds=1)},
            RunTags(gpus=1000, max_duration=timedelta(days=2, seconds=1)),
        ),
        (
            {"gpus": 1, "team": "nlp", "project": "x.y", "tier": "milestone", "kind": "training"},
            RunTags(gpus=1000, team="nlp", project="x.y", tier="milestone", kind="training"),
        ),
        ({"gpus": 1, "cpus": 16, "memory_gib": 0.5}, RunTags(gpus=1000, cpus=16.0, memory_gib=0.5)),
    ],
)
def test_what_the_helper_writes_is_read_as_it_was_meant(
    given: dict[str, Any], ask: RunTags
) -> None:
    tags = gpu_tags(**given)

    assert all(isinstance(value, str) for value in tags.values())
    assert parse_ask(tags) == ask


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_every_whole_size_is_read_as_it_was_written(one: int, other: int) -> None:
    least, most = sorted((one, other))

    assert parse_ask(gpu_tags(most)).gpus == most * 1000
    ask = parse_ask(gpu_tags(f"{least}-{most}"))
    assert (ask.min_gpus or ask.gpus, ask.gpus) == (least * 1000, most * 1000)


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        ({"gpus": "-1"}, "no number of GPUs; write 8, 0.5, or 4-8 for at least four"),
        ({"gpus": ""}, "no number of GPUs"),
        ({"gpus": "abc"}, "'abc', which is no number of GPUs"),
        ({"gpus": "1e9"}, "no number of GPUs"),
        ({"gpus": "٣"}, "no number of GPUs"),
        ({"gpus": "8 GPUs"}, "no number of GPUs"),
        ({"gpus": "1-2-3"}, "no number of GPUs"),
        ({"gpus": "4-"}, "no number of GPUs"),
        ({"gpus": "0.0001"}, "no number of GPUs"),
        ({"gpus": "9999999"}, "no number of GPUs"),
        ({"gpus": "0"}, "a run without GPUs has no such tag"),
        ({"gpus": "0-4"}, "a run without GPUs has no such tag"),
        ({"gpus": "1.5"}, "ask for whole GPUs, or for a part of one (0.5)"),
        ({"gpus": "8-4"}, "the least comes first, 4-8"),
        ({"gpus": "8", "gpus_per_node": "3"}, "does not divide into such nodes"),
        ({"gpus": "4-8", "gpus_per_node": "8"}, "asks for 4, which does not divide"),
        ({"gpus": "8", "gpus_per_node": "0"}, "no whole number from 1"),
        ({"gpus": "8", "gpus_per_node": "4.0"}, "no whole number from 1"),
        ({"gpus": "1", "pool": ""}, "write one pool, or several as h100,a100"),
        ({"gpus": "1", "pool": "h100,"}, "write one pool, or several"),
        ({"gpus": "1", "pool": "h100,h100"}, "names a pool twice"),
        ({"gpus": "1", "team": ""}, "a name has letters, digits"),
        ({"gpus": "1", "tier": "very urgent"}, "a name has letters, digits"),
        ({"gpus": "1", "kind": "trainig"}, "unknown kind 'trainig'; did you mean 'training'?"),
        ({"gpus": "1", "max_duration": "soon"}, "'soon' is not a duration; write 30s, 45m"),
        ({"gpus": "1", "max_duration": "6"}, "'6' has no unit; write 30s, 45m, 6h or 2d"),
        ({"gpus": "1", "max_duration": "1e0"}, "'1e0' is not a duration; write 30s"),
        ({"gpus": "1", "max_duration": "８h"}, "'８h' is not a duration; write 30s"),
        ({"gpus": "1", "max_duration": "0"}, "a run needs some time"),
        ({"gpus": "1", "max_duration": "99999d"}, "longer than ten years"),
        (
            {"gpus": "1", "cpus": "many"},
            "gpufair/cpus is 'many', which is no number above 0; write 16",
        ),
        ({"gpus": "1", "cpus": "-1"}, "no number above 0"),
        ({"gpus": "1", "cpus": "0.0"}, "no number above 0"),
        ({"gpus": "1", "cpus": "1e5"}, "no number above 0"),
        (
            {"gpus": "1", "memory_gib": "512GiB"},
            "gpufair/memory_gib is '512GiB', which is no number",
        ),
        ({"gpus": "1", "memory_gib": "99999999"}, "no number above 0"),
        (
            {"gpus": "1", "hold": "step"},
            "which is not there yet: this version holds GPUs for the whole run",
        ),
        ({"gpus": "1", "hold": "stepp"}, "gpufair/hold is 'stepp'; write run, or remove the tag"),
        ({"gpus": "1", "gpu": "1"}, "unknown tag 'gpufair/gpu'; did you mean 'gpufair/gpus'?"),
    ],
)
def test_what_is_refused_says_what_would_be_right(tags: dict[str, str], says: str) -> None:
    tags = {f"gpufair/{key}": value for key, value in tags.items()}

    assert asks_for_gpus(tags)
    with pytest.raises(InvalidAsk) as refused:
        parse_ask(tags)
    assert says in str(refused.value)


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize(
    "tag",
    [tag.removeprefix("gpufair/") for tag in USER_TAGS],
)
def test_odd_text_is_refused_in_few_words(tag: str, text: str) -> None:
    with pytest.raises(InvalidAsk) as refused:
        parse_ask({"gpufair/gpus": "1", f"gpufair/{tag}": text})
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)


def test_the_helper_refuses_where_the_job_is_defined() -> None:
    with pytest.raises(InvalidAsk, match="no number of GPUs"):
        gpu_tags("many")
    with pytest.raises(InvalidAsk, match="unknown kind"):
        gpu_tags(1, kind="fun")


def in_a_pod(limits: Any, container: str = "container_config") -> dict[str, str]:
    return {"dagster-k8s/config": json.dumps({container: {"resources": {"limits": limits}}})}


@pytest.mark.parametrize("count", [2, "2"])
@pytest.mark.parametrize("container", ["container_config", "containerConfig"])
def test_gpus_in_the_limits_of_a_container_count(count: Any, container: str) -> None:
    tags = in_a_pod({"nvidia.com/gpu": count}, container)

    assert asks_for_gpus(tags)
    assert parse_ask(tags) == RunTags(gpus=2000)


@pytest.mark.parametrize("count", ["x", -1, 1.5, True, None, [1], "9" * 400])
def test_limits_that_cannot_be_read_are_refused(count: Any) -> None:
    tags = in_a_pod({"nvidia.com/gpu": count})

    assert asks_for_gpus(tags)
    with pytest.raises(InvalidAsk, match="is not a whole number from 1"):
        parse_ask(tags)


@pytest.mark.parametrize(
    "config",
    [
        "",
        '{"container_config": ',
        "[" * 100_000,
        '{"a":' * 50_000,
        "null",
        "[1]",
        '{"container_config": "x"}',
        '{"container_config": {"resources": null}}',
        '{"container_config": {"resources": {"limits": null}}}',
        '{"container_config": {"resources": [{"limits": {"nvidia.com/gpu": 2}}]}}',
        '{"container_config": {"resources": {"limits": {"nvidia.com/gpu": 0}}}}',
        '{"container_config": {"resources": {"limits": {"cpu": 4}}}}',
    ],
)
def test_a_container_without_readable_gpus_is_dagsters_own_matter(config: str) -> None:
    assert not asks_for_gpus({"gpufair/team": "nlp", "dagster-k8s/config": config})


def test_the_tag_goes_before_the_limits_of_the_container() -> None:
    assert parse_ask({**in_a_pod({"nvidia.com/gpu": "x"}), **gpu_tags(1)}) == RunTags(gpus=1000)


@pytest.mark.parametrize(
    "tags", [{}, {"team": "x"}, {"gpufair/team": "nlp", "gpufair/pool": "t4"}, {"gpu": "1"}]
)
def test_who_asks_for_none(tags: dict[str, str]) -> None:
    assert not asks_for_gpus(tags)


def test_the_tags_that_we_write_ask_for_nothing() -> None:
    assert not asks_for_gpus({"gpufair/state": "released", "gpufair/reason": "success"})


def test_assets_ask_for_the_most_of_them_together() -> None:
    by_asset = {
        "a": {
            **gpu_tags(1, pool="t4", cpus=16, memory_gib=8),
            "owner": "ann",
            "gpufair/state": "released",
        },
        "b": gpu_tags("2-4", team="nlp", cpus=8, memory_gib=64),
        "c": {},
    }

    together = gpu_tags("2-4", pool="t4", team="nlp", cpus=16, memory_gib=64)
    assert tags_of_assets(by_asset, {}) == together


def test_what_the_run_says_goes_before_its_assets() -> None:
    by_asset = {"a": gpu_tags(1, pool="t4"), "b": gpu_tags(8, pool="h100")}

    with pytest.raises(
        InvalidAsk, match="asset 'a' has gpufair/pool 't4' and asset 'b' has 'h100'"
    ):
        tags_of_assets(by_asset, {})
    assert tags_of_assets(by_asset, {"gpufair/pool": "t4"}) == {"gpufair/gpus": "8"}
