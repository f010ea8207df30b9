"""The rules a pass decides by: the policy in force, but for what a person has paused."""

from __future__ import annotations

import logging
import socket

from sqlalchemy.orm import Session

from dagster_gpufair.engine.policy_file import InForce, PolicyWatch, Seen
from dagster_gpufair.ledger import pauses, policies
from dagster_gpufair.policy.models import Policy


class Rules:
    """``in_force`` is the policy as it was written, `policy` as it is followed now.

    ``trouble`` is what is wrong with the policy file, if anything.
    """

    def __init__(self, watch: PolicyWatch, logger: logging.Logger):
        self.in_force: InForce | None = None
        self.trouble: str | None = None
        self._watch = watch
        self._logger = logger
        self._policy: Policy | None = None

    @property
    def policy(self) -> Policy:
        """The policy in force, without what is paused."""
        assert self._policy is not None, "there is a policy in force"
        return self._policy

    @property
    def version(self) -> int | None:
        """The version of the policy in force."""
        return self.in_force.version if self.in_force else None

    def look_at_file(self) -> Seen | None:
        """What the policy file says, if that is new; it may take seconds, so in no transaction."""
        return self._watch.look()

    def look(self, session: Session, now: float, seen: Seen | None) -> None:
        """Adopt what was seen in the policy file, if anything, and see what is in force."""
        if seen is not None:
            self._adopt(session, seen, now)
        self.in_force = self._watch.in_force(session)
        if self.in_force is not None:
            self._policy = self.in_force.policy.while_paused(pauses.current(session))
        self.trouble = self._watch.trouble(session)

    def _adopt(self, session: Session, seen: Seen, now: float) -> None:
        before = policies.in_force(session)
        by = f"daemon on {socket.gethostname()}"
        self._watch.adopt(session, seen, now, by)
        after = policies.in_force(session)
        if after is not None and (before is None or after.version != before.version):
            self._logger.info("GPU policy v%d is in force (%s)", after.version, self._watch.path)
