"""GPUs, durations and moments, from the form that people write and back."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from dagster_gpufair.policy.quantities import (
    Duration,
    Gpus,
    format_duration,
    format_gpus,
    gpus_number,
    parse_duration,
    parse_gpus,
    parse_moment,
)


@pytest.mark.parametrize(
    ("written", "thousandths"),
    [(8, 8000), ("8", 8000), (0.5, 500), ("0.125", 125), (0, 0), (0.1 + 0.2, 300), (1e6, 10**9)],
)
def test_gpus_are_thousandths(written, thousandths):
    assert parse_gpus(written) == thousandths


@pytest.mark.parametrize(
    "written",
    [
        True,
        None,
        "",
        "eight",
        -1,
        1e7,
        0.0001,
        float("nan"),
        "inf",
        "1e0",
        "1_0",
        "８",
        10**400,
        [8],
        {},
        b"8",
    ],
)
def test_what_is_no_number_of_gpus(written):
    with pytest.raises(ValueError, match="GPU"):
        parse_gpus(written)


@given(st.integers(0, 10**9))
def test_gpus_are_the_same_after_a_dump(thousandths):
    assert parse_gpus(format_gpus(thousandths)) == thousandths
    assert parse_gpus(gpus_number(thousandths)) == thousandths
    assert parse_gpus(TypeAdapter(Gpus).dump_python(thousandths)) == thousandths


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90),
        ("1h30m", 5400),
        ("7d", 604800),
        ("2w", 1209600),
        ("1.5H", 5400),
        (0, 0),
        ("0", 0),
    ],
)
def test_durations(written, seconds):
    assert parse_duration(written) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "written",
    [True, None, "", "soon", "5 m", "-5m", -5, "5x", "1e0", "８h", float("inf"), "9999w", [], {}],
)
def test_what_is_no_duration(written):
    with pytest.raises(ValueError, match=r"duration|longer than ten years"):
        parse_duration(written)


@pytest.mark.parametrize("written", [6, "6", 0.5, " 45 "])
def test_a_duration_says_its_unit(written):
    with pytest.raises(ValueError, match="has no unit; write 30s, 45m, 6h or 2d"):
        parse_duration(written)


def test_a_number_too_long_to_print():
    for parse in (parse_gpus, parse_duration):
        with pytest.raises(ValueError, match="a number of thousands of digits is not a "):
            parse(10**5000)


@given(st.timedeltas(timedelta(0), timedelta(days=3650)))
def test_durations_are_the_same_after_a_dump(duration):
    assert parse_duration(TypeAdapter(Duration).dump_python(duration)) == duration
    assert format_duration(duration)


def test_moments_have_a_zone():
    noon = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)
    for written in ("2026-06-01T12:00:00Z", "2026-06-01 14:00+02:00", noon):
        assert parse_moment(written) == noon


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("2026-06-01T12:00:00", "has no time zone"),
        ("2026-06-01", "has no time zone"),
        (date(2026, 6, 1), "has no time zone"),
        ("tomorrow", "is not a moment"),
        (1780000000, "is not a moment"),
        (None, "is not a moment"),
        ("0001-01-01T00:00:00+14:00", "is out of range"),
    ],
)
def test_what_is_no_moment(written, message):
    with pytest.raises(ValueError, match=message):
        parse_moment(written)
