"""Which leases a quota covers, and which are borrowed."""

from __future__ import annotations

from scheduling_builder import NOW, holds, policy

from dagster_gpufair.scheduling.accounts.coverage import borrowed_part

RULES = policy({"t4": 16, "h100": 8}, {"a": {"quota": {"t4": 4}}, "b": {"quota": {"t4": 4}}})


def test_a_quota_covers_the_older_leases():
    leases = [holds("new", "a", "t4", 2, since="1h"), holds("old", "a", "t4", 4, since="2h")]
    assert borrowed_part(RULES, leases, NOW) == {"new"}


def test_a_quota_covers_higher_tiers_first():
    leases = [
        holds("old", "a", "t4", 4, since="9h", tier="exploratory"),
        holds("new", "a", "t4", 4, since="1h", tier="milestone"),
    ]
    assert borrowed_part(RULES, leases, NOW) == {"old"}


def test_a_later_small_lease_may_be_covered_where_a_large_one_is_not():
    leases = [
        holds("first", "a", "t4", 2, since="3h"),
        holds("large", "a", "t4", 3, since="2h"),
        holds("small", "a", "t4", 2, since="1h"),
    ]
    assert borrowed_part(RULES, leases, NOW) == {"large"}


def test_what_is_borrowed_changes_as_leases_end():
    leases = [holds("first", "a", "t4", 4, since="2h"), holds("second", "a", "t4", 4, since="1h")]
    assert borrowed_part(RULES, leases, NOW) == {"second"}
    assert borrowed_part(RULES, leases[1:], NOW) == frozenset()


def test_each_team_and_pool_has_a_quota_of_its_own():
    leases = [
        holds("a", "a", "t4", 4),
        holds("b", "b", "t4", 4),
        holds("elsewhere", "b", "h100", 1),
        holds("stranger", "gone", "t4", 1),
    ]
    assert borrowed_part(RULES, leases, NOW) == {"elsewhere", "stranger"}
