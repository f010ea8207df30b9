"""Nodes out of service: who took them out, why, and when they came back."""

from __future__ import annotations

from dagster_gpufair.ledger import events, nodes
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.nodes import CordonedNode


def test_a_node_is_out_of_service_until_it_is_put_back(ledger: Ledger) -> None:
    with ledger.writing() as session:
        assert nodes.cordoned(session) == []
        assert nodes.cordon(session, "h100", "h2", "ana", "fan is broken", 1000.0)
        assert nodes.cordon(session, "h100", "h1", "ana", "fan is broken", 1001.0)
        assert nodes.cordon(session, "a100", "h2", "ben", "", 1002.0)
        assert nodes.cordoned(session) == [
            CordonedNode("a100", "h2", 1002.0, "ben", ""),
            CordonedNode("h100", "h1", 1001.0, "ana", "fan is broken"),
            CordonedNode("h100", "h2", 1000.0, "ana", "fan is broken"),
        ]
        assert nodes.cordoned_by_pool(session) == {
            "a100": frozenset({"h2"}),
            "h100": frozenset({"h1", "h2"}),
        }
        assert nodes.uncordon(session, "h100", "h2", "ben", 1003.0)
        assert nodes.cordoned_by_pool(session)["h100"] == frozenset({"h1"})
        # Again, from the start.
        assert nodes.cordon(session, "h100", "h2", "ben", "again", 1004.0)
        assert nodes.cordoned(session)[-1] == CordonedNode("h100", "h2", 1004.0, "ben", "again")


def test_what_is_so_already_changes_nothing_and_is_no_event(ledger: Ledger) -> None:
    with ledger.writing() as session:
        assert not nodes.uncordon(session, "h100", "h1", "ana", 999.0)
        assert nodes.cordon(session, "h100", "h1", "ana", "fan", 1000.0)
        assert not nodes.cordon(session, "h100", "h1", "ben", "disk", 1001.0)
        assert nodes.cordoned(session) == [CordonedNode("h100", "h1", 1000.0, "ana", "fan")]
        assert nodes.uncordon(session, "h100", "h1", "ben", 1002.0)
        assert not nodes.uncordon(session, "h100", "h1", "ben", 1003.0)
        happened = events.since(session, 0)
    assert [(event.kind, event.at, event.pool, event.data) for event in happened] == [
        ("cordoned", 1000.0, "h100", {"node": "h1", "by": "ana", "reason": "fan"}),
        ("uncordoned", 1002.0, "h100", {"node": "h1", "by": "ben"}),
    ]


def test_reasons_and_names_of_any_kind(ledger: Ledger) -> None:
    odd = "it's 🦑 \x00 'quoted'; DROP TABLE x; --" * 100
    with ledger.writing() as session:
        assert nodes.cordon(session, odd, odd, odd, odd, 1000.0)
        (found,) = nodes.cordoned(session)
        assert found.reason == odd.replace("\x00", "\N{REPLACEMENT CHARACTER}")
        assert nodes.uncordon(session, odd, odd, odd, 1001.0)
        assert nodes.cordoned(session) == []
