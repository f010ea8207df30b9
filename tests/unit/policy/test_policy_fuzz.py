"""Whatever the text: a policy, or an error that can be printed. Never anything else."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from dagster_gpufair.policy.in_force import held, upcoming
from dagster_gpufair.policy.loading import parse_policy, policy_from
from dagster_gpufair.policy.notes import notes_of
from dagster_gpufair.policy.plain import sentences
from dagster_gpufair.policy.problems import PolicyError
from dagster_gpufair.policy.schema import json_schema
from dagster_gpufair.policy.starter import starter_text

_WORDS = sorted(
    {
        key
        for section in (*json_schema()["$defs"].values(), json_schema())
        for key in section["properties"]
    }
    | {
        "h100",
        "nlp",
        "standard",
        "all",
        "auto",
        "off",
        "30m",
        "2026-06-01T00:00:00Z",
        "<<",
        "x/y",
        "",
    }
)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.datetimes(),
    st.binary(max_size=4),
    st.sampled_from(_WORDS),
)
_KEYS = st.one_of(st.sampled_from(_WORDS), st.text(max_size=5), st.integers(), st.booleans())
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=4)),
    max_leaves=20,
)


def _is_a_policy_or_an_error(text: str | bytes) -> None:
    try:
        policy = parse_policy(text)
    except PolicyError as error:
        assert error.problems
        assert str(error).encode()
    else:
        assert sentences(policy)
        notes_of(policy)


@given(st.text())
def test_any_text(text):
    _is_a_policy_or_an_error(text)


@given(st.binary())
def test_any_bytes(data):
    _is_a_policy_or_an_error(data)


@given(st.text(alphabet="abh10:-[]{},&*!|>'\"%@#?<~ \n\t.", max_size=60))
def test_any_text_of_yaml_signs(text):
    _is_a_policy_or_an_error(text)


@given(_VALUES)
def test_any_values(values):
    _is_a_policy_or_an_error(yaml.safe_dump(values))


@given(st.dictionaries(st.sampled_from(_WORDS), _VALUES, max_size=4))
def test_any_values_in_a_sound_policy(sections):
    sound = {"pools": {"h100": {"gpus": 8}}, "teams": {"nlp": {"quota": {"h100": 8}}}}
    _is_a_policy_or_an_error(yaml.safe_dump({**sound, **sections}))


@given(
    st.one_of(
        st.lists(st.text("0123456789*/,-#lw", min_size=1, max_size=5), min_size=5, max_size=5),
        st.lists(
            st.sampled_from(["*", "0", "*/20", "29", "31", "2", "1L", "L"]), min_size=5, max_size=5
        ),
    ),
    st.floats(0, 250_000_000_000),
)
def test_any_cron_schedule(fields, now):
    window = {"team": "nlp", "pool": "h100", "gpus": 5, "cron": " ".join(fields), "duration": "9h"}
    pools, teams = {"h100": {"gpus": 8}}, {"nlp": {"quota": {"h100": 4}}}
    try:
        policy = policy_from({"pools": pools, "teams": teams, "windows": [window]})
    except PolicyError as error:
        assert str(error)
    else:
        assert all(each.start > now for each in upcoming(policy, now))
        assert sentences(policy)
        assert notes_of(policy, now) or not held(policy, now)


@given(st.data())
def test_a_sound_policy_with_one_character_changed(data):
    text = starter_text()
    place = data.draw(st.integers(0, len(text) - 1))
    instead = data.draw(st.text(max_size=2))
    _is_a_policy_or_an_error(text[:place] + instead + text[place + 1 :])


@given(_VALUES)
def test_any_values_that_were_read_already(values):
    try:
        policy_from(values, "case.yaml", under="policy")
    except PolicyError as error:
        assert str(error)
