"""From the file people edit to the policy in force: looked at every pass, adopted when it is good.

The policy in force is the newest version in the ledger. A file that cannot be a policy changes nothing;
what is wrong with it is kept in the ledger's status, so that every process can say so. The file may lie
on a mount that hangs, so it is read before the ledger is written to, and never waited for twice.
"""

from __future__ import annotations

import hashlib
import shlex
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import policies, status
from dagster_gpufair.ledger.status import POLICY_FILE
from dagster_gpufair.policy.loading import parse_policy, read_policy
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.problems import PolicyError, PolicyFileMissing, Problem
from dagster_gpufair.policy.quantities import format_moment

DEFAULT_POLICY_FILE = "gpufair.yaml"

_PATIENCE = 5.0
"""Seconds that a pass waits for the file; a read that takes longer goes on beside it."""


@dataclass(frozen=True)
class InForce:
    """The policy that decides now, and its version in the ledger."""

    version: int
    policy: Policy


Stamp = tuple[int, ...]
"""Differs also for a file that was put back with its old time, or is of the same size."""


@dataclass(frozen=True)
class Good:
    """A sound policy as the file says it."""

    text: str
    digest: str
    policy: Policy


@dataclass(frozen=True)
class Seen:
    """What a look at the file found: a policy, or the problems that keep it from being one.

    ``mark`` tells it from other looks: the file's stamp, or the read that hangs.
    """

    mark: object
    good: Good | None = None
    problems: Sequence[Problem] = ()
    is_missing: bool = False


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
        self._looking = threading.Lock()
        self._reading: _Reading | None = None
        self._last: Seen | None = None
        """What the file said when it was last read to its end."""
        self._settled: object = None
        """The mark of what the ledger was told last."""
        self._parsed: tuple[str, Policy] | None = None
        """The policy in force, by its digest."""

    @property
    def has_seen_one_in_force(self) -> bool:
        """Whether this process has met a policy in force."""
        return self._parsed is not None

    def in_force(self, session: Session) -> InForce | None:
        """The newest version in the ledger; None when there is none yet.

        Raises:
            PolicyError: when this version of the package cannot read what is in force.
        """
        row = policies.in_force(session)
        if row is None:
            return None
        if self._parsed is None or self._parsed[0] != row.digest:
            good = self._last.good if self._last is not None else None
            if good is not None and good.digest == row.digest:
                self._parsed = (row.digest, good.policy)
            else:
                policy = parse_policy(row.document, f"policy v{row.version}")
                self._parsed = (row.digest, policy)
        return InForce(row.version, self._parsed[1])

    def trouble(self, session: Session) -> str | None:
        """What is wrong with the file, whoever looked at it last."""
        problem = status.get(session, POLICY_FILE)
        return problem["summary"] if problem else None

    def look(self) -> Seen | None:
        """What the file says, unless that was adopted already. Call it outside of any transaction.

        It waits for the file a few seconds at most. While a read hangs it returns at once, and there is
        no second one.
        """
        with self._looking:
            if self._reading is None:
                self._reading = _Reading(self.path, self._last)
                self._reading.ended.wait(_PATIENCE)
            reading = self._reading
            if reading.hangs and self._settled is reading:
                return None
            if reading.hangs:
                return Seen(reading, problems=[reading.hang()])
            self._reading = None
            self._last = reading.found or self._last
        if self._last is None or self._last.mark == self._settled:
            return None
        return self._last

    def adopt(self, session: Session, seen: Seen, at: float, by: str) -> Sequence[Problem]:
        """Put what was seen in force if it is a good policy and not yet so; else record what is wrong.

        It is seen anew if the transaction does not come to its end.

        Returns:
            The problems that keep it from being adopted; none when it is in force now.
        """
        if seen.good is not None:
            policies.adopt(session, seen.good.text, seen.good.digest, str(self.path), by, at)
        trouble = _trouble(self.path, seen.problems) if seen.problems else None
        kept = policies.in_force(session) if seen.is_missing else None
        if kept is not None:
            trouble = _gone(self.path, kept.version)
        status.put(session, POLICY_FILE, trouble, at)

        def settle(_: Connection) -> None:
            self._settled = seen.mark

        event.listen(session.connection(), "commit", settle, once=True)
        return seen.problems


class _Reading:
    """One look at the file in a thread of its own, which may never end."""

    def __init__(self, path: Path, last: Seen | None):
        self.ended = threading.Event()
        self.found: Seen | None = None
        self._path = path
        self._last = last
        self._since = int(time.time())
        self._thread = threading.Thread(target=self._read, name="gpufair-policy-file", daemon=True)
        self._thread.start()

    @property
    def hangs(self) -> bool:
        """Whether it goes on. In a process that was copied from another, its thread is gone."""
        return not self.ended.is_set() and self._thread.is_alive()

    def hang(self) -> Problem:
        """What to say of it while it goes on."""
        since = format_moment(float(self._since))
        return Problem(
            "", f"reading it hangs since {since}; check the disk or the mount that it is on"
        )

    def _read(self) -> None:
        try:
            stamp = _stamp(self._path)
            if self._last is None or stamp != self._last.mark:
                self.found = _found(self._path, stamp)
        finally:
            self.ended.set()


def _found(path: Path, stamp: Stamp) -> Seen:
    try:
        text, policy = read_policy(path)
    except PolicyError as error:
        is_missing = isinstance(error, PolicyFileMissing)
        return Seen(stamp, problems=error.problems, is_missing=is_missing)
    return Seen(stamp, Good(text, hashlib.sha256(text.encode()).hexdigest(), policy))


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return ()
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def _gone(path: Path, version: int) -> dict[str, object]:
    """The file is no more, but what it said is in force: the ledger has it."""
    restores = (
        f"`gpufair policy show --yaml > {shlex.quote(str(path))}` writes policy v{version} there"
    )
    return {
        "file": str(path),
        "summary": f"{path.name} is missing; {restores}",
        "problems": [{"path": "", "message": f"no such file; {restores}"}],
    }


def _trouble(path: Path, found: Sequence[Problem]) -> dict[str, object]:
    problems = [{"path": problem.path, "message": problem.message} for problem in found]
    count = f"{len(problems)} error" + ("s" if len(problems) != 1 else "")
    return {
        "file": str(path),
        "summary": f"{path.name} has {count} ({found[0]})",
        "problems": problems,
    }
