"""The rules a pass decides by: the policy in force, as far as this version carries it out."""

from __future__ import annotations

import logging
import socket

from sqlalchemy.orm import Session

from dagster_gpufair.engine.as_off import as_off, not_carried_out
from dagster_gpufair.engine.policy_file import InForce, PolicyWatch, Seen
from dagster_gpufair.ledger import policies
from dagster_gpufair.policy.models import Policy


class Rules:
    """``in_force`` is the policy as it was written, `policy` as it is carried out.

    ``trouble`` is what is wrong with the policy file, if anything.
    """

    def __init__(self, watch: PolicyWatch, logger: logging.Logger):
        self.in_force: InForce | None = None
        self.trouble: str | None = None
        self._watch = watch
        self._logger = logger
        self._carried_out: tuple[int, Policy] | None = None

    @property
    def policy(self) -> Policy:
        """The policy in force as this version carries it out."""
        assert self._carried_out is not None, "there is a policy in force"
        return self._carried_out[1]

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
            self._carry_out(self.in_force)
        self.trouble = self._watch.trouble(session)

    def _adopt(self, session: Session, seen: Seen, now: float) -> None:
        before = policies.in_force(session)
        by = f"daemon on {socket.gethostname()}"
        self._watch.adopt(session, seen, now, by)
        after = policies.in_force(session)
        if after is not None and (before is None or after.version != before.version):
            self._logger.info("GPU policy v%d is in force (%s)", after.version, self._watch.path)

    def _carry_out(self, in_force: InForce) -> None:
        """Take a policy as this version carries it out, and log what it leaves out, once."""
        if self._carried_out is not None and self._carried_out[0] == in_force.version:
            return
        left_out = not_carried_out(in_force.policy)
        if left_out:
            self._logger.warning(
                "GPU policy v%d sets %s: not carried out, since this version stops no running work for "
                "other work. Runs that wait say what would be stopped for them.",
                in_force.version,
                " and ".join(left_out),
            )
        self._carried_out = (in_force.version, as_off(in_force.policy))
