"""Grants and windows hold for their time: to the second, and cron schedules in UTC."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_gpufair.policy.in_force import Upcoming, changes, granted, held, upcoming
from dagster_gpufair.policy.loading import parse_policy
from dagster_gpufair.policy.models import Policy

# 1 June 2026 is a Monday.
NIGHTS = "windows: [{team: nlp, pool: h100, gpus: 4, cron: 0 20 * * 1-5, duration: 10h}]"
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def at(text: str) -> float:
    return datetime.fromisoformat(f"2026-{text}+00:00").timestamp()


@pytest.fixture
def policy(with_pools):
    def read(text: str) -> Policy:
        teams = """
teams:
  nlp: {quota: {h100: 4}, projects: {pretrain: {quota: {h100: 2}}, eval: {}}}
  vision: {}
"""
        return parse_policy(with_pools(teams + text))

    return read


def grant(start: str, until: str, gpus: float = 2, project: str = "") -> str:
    inside = f", project: {project}" if project else ""
    return (
        f"{{team: nlp{inside}, pool: h100, gpus: {gpus}, from: 2026-{start}Z, until: 2026-{until}Z, "
        "approved_by: ana, reason: paper}"
    )


def test_a_grant_holds_from_its_first_second_and_no_longer_at_its_last(policy):
    two_weeks = policy(f"grants: [{grant('06-01T00:00:00', '06-15T00:00:00')}]")
    assert granted(two_weeks, at("06-01T00:00:00") - 0.001) == {}
    assert granted(two_weeks, at("06-01T00:00:00")) == {("nlp", None, "h100"): 2000}
    assert granted(two_weeks, at("06-15T00:00:00") - 0.001) == {("nlp", None, "h100"): 2000}
    assert granted(two_weeks, at("06-15T00:00:00")) == {}


def test_grants_that_overlap_add_up_and_a_projects_stand_on_their_own(policy):
    june = "06-01T00:00:00", "06-30T00:00:00"
    several = policy(
        f"grants: [{grant(*june)}, {grant('06-10T00:00:00', '06-20T00:00:00', 0.5)}, "
        f"{grant(*june, 1, 'pretrain')}]"
    )
    assert granted(several, at("06-09T12:00:00")) == {
        ("nlp", None, "h100"): 2000,
        ("nlp", "pretrain", "h100"): 1000,
    }
    assert granted(several, at("06-12T12:00:00"))["nlp", None, "h100"] == 2500


def test_a_grant_is_read_in_its_own_zone(policy):
    text = grant("06-01T00:00:00", "06-02T00:00:00").replace("00Z", "00+02:00")
    assert granted(policy(f"grants: [{text}]"), at("05-31T22:00:00"))
    assert not granted(policy(f"grants: [{text}]"), at("06-01T22:00:00"))


def test_a_window_that_is_once_comes_and_goes(policy):
    once = policy(
        "windows: [{team: vision, pool: t4, gpus: 8, "
        "from: 2026-06-01T08:00:00Z, until: 2026-06-01T18:00:00Z}]"
    )
    start, until = at("06-01T08:00:00"), at("06-01T18:00:00")
    coming = [Upcoming("vision", "t4", 8000, start, until)]
    assert (held(once, start - DAY), upcoming(once, start - DAY)) == ({}, coming)
    assert (held(once, start - 1), upcoming(once, start - 1)) == ({}, coming)
    assert (held(once, start), upcoming(once, start)) == ({("vision", "t4"): 8000}, [])
    assert (held(once, until - 1), upcoming(once, until - 1)) == ({("vision", "t4"): 8000}, [])
    assert (held(once, until), upcoming(once, until)) == ({}, [])


@pytest.mark.parametrize(
    ("now", "in_force", "next_start"),
    [
        ("06-01T19:59:59.999", False, "06-01T20:00:00"),
        ("06-01T20:00:00", True, "06-02T20:00:00"),
        ("06-02T05:59:59", True, "06-02T20:00:00"),
        ("06-02T06:00:00", False, "06-02T20:00:00"),
        # Friday's lasts into Saturday, and the next is Monday's.
        ("06-06T03:00:00", True, "06-08T20:00:00"),
        ("06-07T03:00:00", False, "06-08T20:00:00"),
    ],
)
def test_a_window_on_weekday_nights(now, in_force, next_start, policy):
    nights = policy(NIGHTS)
    assert held(nights, at(now)) == ({("nlp", "h100"): 4000} if in_force else {})
    start = at(next_start)
    assert upcoming(nights, at(now)) == [Upcoming("nlp", "h100", 4000, start, start + 10 * HOUR)]


def test_the_moments_may_be_asked_in_any_order(policy):
    nights = policy(NIGHTS)
    moments = [at("06-01T21:00:00") + hours * HOUR for hours in (0, 72, 24, 12, 12, 130, 0)]
    assert [bool(held(nights, now)) for now in moments] == [
        True, True, True, False, False, False, True,
    ]  # fmt: skip


def test_a_window_that_starts_again_before_it_is_over_holds_its_gpus_once(policy):
    always = policy("windows: [{team: nlp, pool: h100, gpus: 4, cron: 0 * * * *, duration: 90m}]")
    for minutes in range(0, 180, 7):
        now = at("06-01T00:00:00") + minutes * MINUTE
        assert held(always, now) == {("nlp", "h100"): 4000}
    assert upcoming(always, at("06-01T00:30:00"))[0].start == at("06-01T01:00:00")


def test_windows_at_the_same_time_add_up(policy):
    several = policy("""
windows:
  - {team: nlp, pool: h100, gpus: 4, cron: 0 20 * * *, duration: 8h}
  - {team: nlp, pool: h100, gpus: 2, cron: 0 22 * * *, duration: 8h}
  - {team: nlp, pool: t4, gpus: 1, cron: 0 20 * * *, duration: 8h}
  - {team: vision, pool: h100, gpus: 3, cron: 0 20 * * *, duration: 8h}
""")
    assert held(several, at("06-01T23:00:00")) == {
        ("nlp", "h100"): 6000,
        ("nlp", "t4"): 1000,
        ("vision", "h100"): 3000,
    }


def test_windows_to_come_stand_in_the_order_of_their_starts(policy):
    several = policy("""
windows:
  - {team: vision, pool: h100, gpus: 1, cron: 0 20 * * *, duration: 1h}
  - {team: nlp, pool: t4, gpus: 1, cron: 0 20 * * *, duration: 1h}
  - {team: nlp, pool: h100, gpus: 1, cron: 0 20 * * *, duration: 1h}
  - {team: vision, pool: t4, gpus: 1, cron: 0 19 * * *, duration: 1h}
  - {team: nlp, pool: t4, gpus: 1, from: 2026-05-01T00:00:00Z, until: 2026-05-02T00:00:00Z}
""")
    order = [(each.team, each.pool) for each in upcoming(several, at("06-01T12:00:00"))]
    assert order == [("vision", "t4"), ("nlp", "h100"), ("nlp", "t4"), ("vision", "h100")]


def test_a_window_every_leap_day(policy):
    leap = policy("windows: [{team: nlp, pool: h100, gpus: 4, cron: 0 0 29 2 *, duration: 1d}]")
    [next_one] = upcoming(leap, at("06-01T00:00:00"))
    assert datetime.fromtimestamp(next_one.start).year == 2028
    assert held(leap, next_one.start + HOUR)


def test_a_policy_without_grants_and_windows_gives_nothing(policy):
    now = at("06-01T00:00:00")
    assert (granted(policy(""), now), held(policy(""), now), upcoming(policy(""), now)) == (
        {}, {}, [],
    )  # fmt: skip


@given(
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    weekdays=st.sets(st.integers(0, 6), min_size=1),
    minutes_long=st.integers(1, 60 * 24 * 9),
    now=st.floats(at("01-01T00:00:00"), at("12-31T00:00:00")),
)
def test_a_cron_window_is_what_a_walk_through_the_days_finds(
    minute, hour, weekdays, minutes_long, now
):
    days = ",".join(str(day) for day in sorted(weekdays))
    policy = parse_policy(f"""
pools: {{h: {{gpus: 8}}}}
teams: {{t: {{}}}}
windows: [{{team: t, pool: h, gpus: 1, cron: '{minute} {hour} * * {days}', duration: {minutes_long}m}}]
""")
    midnight = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    starts = [
        (midnight + timedelta(days=offset, hours=hour, minutes=minute)).timestamp()
        for offset in range(-17, 380)
        if (midnight + timedelta(days=offset)).isoweekday() % 7 in weekdays
    ]
    length = minutes_long * MINUTE
    assert bool(held(policy, now)) == any(start <= now < start + length for start in starts)
    assert upcoming(policy, now)[0].start == min(start for start in starts if start > now)


def test_the_moments_at_which_anything_changes(policy):
    once = (
        "{team: nlp, pool: h100, gpus: 1, from: 2026-06-01T10:00:00Z, until: 2026-06-01T12:00:00Z}"
    )
    extras = f"grants: [{grant('06-01T08:00:00', '06-01T11:00:00')}]\nwindows: [{once}]"
    assert changes(policy(extras), at("06-01T09:00:00")) == [
        at("06-01T10:00:00"),
        at("06-01T11:00:00"),
        at("06-01T12:00:00"),
    ]
    assert changes(policy(extras), at("06-01T12:00:00")) == []
