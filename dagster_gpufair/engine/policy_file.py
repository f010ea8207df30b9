"""From the file people edit to the policy in force: looked at every pass, adopted when it is good.

The policy in force is the newest version in the ledger. A file that cannot be a policy changes nothing;
what is wrong with it is kept in the ledger's status, so that every process can say so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from dagster_gpufair.ledger import policies, status
from dagster_gpufair.ledger.status import POLICY_FILE
from dagster_gpufair.policy.loading import parse_policy, read_policy
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.problems import PolicyError, Problem


@dataclass(frozen=True)
class InForce:
    """The policy that decides now, and its version in the ledger."""

    version: int
    policy: Policy


def find_policy_file(setting: str, instance_root: str | None) -> Path:
    """The policy file of a ``policy`` setting: beside ``dagster.yaml``, else in the current folder."""
    path = Path(setting).expanduser()
    if path.is_absolute():
        return path
    beside = Path(instance_root or ".") / path
    return beside if beside.exists() else Path.cwd() / path


class PolicyWatch:
    """Follows the policy file and the ledger's versions for one process."""

    def __init__(self, path: Path):
        self.path = path
        self._seen: tuple[int, ...] | None = None
        self._parsed: tuple[int, Policy] | None = None

    def in_force(self, session: Session) -> InForce | None:
        """The newest version in the ledger; None when there is none yet.

        Raises:
            PolicyError: when this version of the package cannot read what is in force.
        """
        row = policies.in_force(session)
        if row is None:
            return None
        if self._parsed is None or self._parsed[0] != row.version:
            self._parsed = (row.version, parse_policy(row.document, f"policy v{row.version}"))
        return InForce(*self._parsed)

    def trouble(self, session: Session) -> str | None:
        """What is wrong with the file, whoever looked at it last."""
        problem = status.get(session, POLICY_FILE)
        return problem["summary"] if problem else None

    def has_changed(self) -> bool:
        """Whether the file is another than when `take_up` last looked."""
        return self._stamp() != self._seen

    def take_up(self, session: Session, at: float, by: str) -> Sequence[Problem]:
        """Adopt the file if it is a good policy and not yet in force; else record what is wrong.

        Returns:
            The problems that keep it from being adopted; none when it is in force now.
        """
        stamp = self._stamp()
        try:
            text, _ = read_policy(self.path)
        except PolicyError as error:
            status.put(session, POLICY_FILE, _trouble(self.path, error), at)
            self._seen = stamp
            return error.problems
        digest = hashlib.sha256(text.encode()).hexdigest()
        newest = policies.in_force(session)
        if newest is None or newest.digest != digest:
            policies.adopt(session, text, digest, str(self.path), by, at)
        status.put(session, POLICY_FILE, None, at)
        self._seen = stamp
        return ()

    def _stamp(self) -> tuple[int, ...]:
        """Differs also for a file that was put back with its old time, or is of the same size."""
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def _trouble(path: Path, error: PolicyError) -> dict[str, object]:
    problems = [{"path": problem.path, "message": problem.message} for problem in error.problems]
    count = f"{len(problems)} error" + ("s" if len(problems) != 1 else "")
    return {
        "file": str(path),
        "summary": f"{path.name} has {count} ({error.problems[0]})",
        "problems": problems,
    }
