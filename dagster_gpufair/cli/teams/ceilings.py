"""How much of each team's ceilings its running work declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dagster_gpufair.cli.moment.current import Moment


@dataclass(frozen=True)
class CeilingUse:
    """One ceiling of a team, in CPU cores or GiB."""

    team: str
    what: str
    used: float
    most: float

    def as_json(self) -> dict[str, Any]:
        """Under the names of the fields."""
        return {
            "team": self.team,
            "what": self.what,
            "used": round(self.used, 3),
            "most": self.most,
        }


def ceiling_uses(moment: Moment) -> Sequence[CeilingUse]:
    """All ceilings that the policy sets and this version counts."""
    ceilings = moment.snapshot.ceilings
    return [
        CeilingUse(team, *row) for team in moment.policy.teams for row in ceilings.of_team(team)
    ]
