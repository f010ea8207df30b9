"""One run's folder on disk: it is brought to what is to be said, and what the run's code wrote is read.

Whoever runs the code may write anything there. So nothing is followed that is a link, nothing is opened that
could make the reader wait, and nothing is read without a bound. All of it may hang or fail: `channels` calls
it in threads of its own.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dagster_gpufair.gate.channels.reports import Found, Signature, heard_of
from dagster_gpufair.gate.channels.words import Heard, Lease, Notice
from dagster_gpufair.policy.quantities import gpus_number
from dagster_gpufair.preemption.files import (
    BUSY,
    CHECKPOINTED,
    LARGEST,
    LEASE,
    NOTICE,
    SCHEMA,
    folder_name,
    is_stop_here,
    number,
    parse,
)

MOST_FILES = 1000
"""So many files of a channel are looked at."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Content:
    """What is to stand in a channel: the lease, if it is known, and the notice, if there is one."""

    lease: Lease | None = None
    notice: Notice | None = None


class Folder:
    """The channel of one run; used by one thread at a time."""

    def __init__(self, root: Path, checkpoints: Path, run_id: str, clock: Callable[[], float]):
        self.path = root / folder_name(run_id)
        self._checkpoints = checkpoints
        self._run_id = run_id
        self._clock = clock
        self._written = Content()
        self._is_known = False
        """Whether what stands there is what was written: an earlier daemon may have left something else."""
        self._to_clear = False
        """Whether answers to an earlier notice may be there still."""
        self._found: dict[str, Found] = {}

    def bring(self, content: Content) -> tuple[Heard, tuple[str, ...], OSError | None]:
        """Have this stand there, and read what the run says. Does nothing twice.

        Returns:
            What was heard, what is wrong with the files, in words, and why there is no folder for
            checkpoints, if there is none.

        Raises:
            OSError: if something of it could not be done. The notice is written if it can be.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _make(self.path)
        failed: OSError | None = None
        if content.lease is not None:
            try:
                self._checkpoints.mkdir(parents=True, exist_ok=True)
                _make(self.checkpoints_of(content.lease))
            except OSError as error:
                failed = error
        folder = os.open(self.path, os.O_DIRECTORY | _OPEN)
        try:
            names = _names(folder)
            self._write(folder, names, content)
            heard, wrong = self._read(folder, names, content.lease)
        finally:
            os.close(folder)
        return heard, wrong, failed

    def checkpoints_of(self, lease: Lease) -> Path:
        """The folder for the checkpoints of whatever run works on this request."""
        return self._checkpoints / folder_name(lease.request)

    def remove(self, checkpoints: Path | None) -> None:
        """Remove the channel at once, and a folder for checkpoints if nothing is in it.

        Code that waits for its stop takes a notice that is gone from its folder as taken back, so the folder
        goes as a whole. Files in it that are nobody's here stay, in a folder named ``….closed``.

        Raises:
            OSError: if that cannot be done.
        """
        closed = self.path.with_name(f"{self.path.name}.closed")
        with suppress(FileNotFoundError):
            try:
                self.path.rename(closed)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                # It was closed before, and something is in that one that is nobody's here.
                closed = closed.with_name(f"{closed.name}-{uuid.uuid4().hex[:8]}")
                self.path.rename(closed)
        with suppress(FileNotFoundError):
            if closed.is_symlink() or not closed.is_dir():
                closed.unlink()
            else:
                self._empty(closed)
        if checkpoints is not None:
            with suppress(OSError):
                checkpoints.rmdir()

    @staticmethod
    def _empty(closed: Path) -> None:
        folder = os.open(closed, os.O_DIRECTORY | _OPEN)
        try:
            for name in _names(folder):
                ours = name.removeprefix(".")
                known = (LEASE, NOTICE, CHECKPOINTED, BUSY)
                if ours.startswith(known) or ours.startswith("stop_here."):
                    os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            closed.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    # -- what the daemon says -------------------------------------------------------------------

    def _write(self, folder: int, names: set[str], content: Content) -> None:
        lease, notice = content.lease, content.notice
        if notice is not None and NOTICE not in names:
            self._to_clear = True
        failed: OSError | None = None
        if self._to_clear:
            try:
                for name in [name for name in names if is_stop_here(name)]:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=folder)
                    names.discard(name)
                self._to_clear = False
            except OSError as error:
                failed = error
        if notice is None and NOTICE in names:
            with suppress(FileNotFoundError):
                os.unlink(NOTICE, dir_fd=folder)
        elif notice is not None and not self._stands(folder, names, NOTICE, content):
            _put(folder, NOTICE, self._notice_file(notice))
        if lease is not None and not self._stands(folder, names, LEASE, content):
            _put(folder, LEASE, self._lease_file(lease))
        if failed is not None:
            raise failed
        self._written, self._is_known = content, True

    def _stands(self, folder: int, names: set[str], name: str, content: Content) -> bool:
        """Whether a file of ours is there and says what it should."""
        if name not in names:
            return False
        if self._is_known:
            before = self._written
            is_notice = name == NOTICE
            return before.notice == content.notice if is_notice else before.lease == content.lease
        try:
            said = parse(_content(folder, name)[1]) or {}
        except (OSError, NotAFile):
            return False
        if name == LEASE:
            return content.lease is not None and said == self._lease_file(content.lease)
        assert content.notice is not None
        wanted = self._notice_file(content.notice)
        # How much time was left is said of when it was written.
        return number(said, "seconds_left") is not None and {**wanted, "seconds_left": 0} == {
            **said,
            "seconds_left": 0,
        }

    def _notice_file(self, notice: Notice) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "until": notice.until,
            "seconds_left": max(0.0, round(notice.until - self._clock(), 3)),
            "rule": notice.rule,
            "for": notice.asked_by,
        }

    def _lease_file(self, lease: Lease) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "run": self._run_id,
            "request": lease.request,
            "gpus": gpus_number(lease.gpus),
            "pool": lease.pool,
            "checkpoint_dir": str(self.checkpoints_of(lease)),
        }

    # -- what the run says ----------------------------------------------------------------------

    def _read(
        self, folder: int, names: Iterable[str], lease: Lease | None
    ) -> tuple[Heard, tuple[str, ...]]:
        wanted = [name for name in names if name in (CHECKPOINTED, BUSY) or is_stop_here(name)]
        self._found = {name: self._look(folder, name) for name in sorted(wanted)}
        return heard_of(self._found, lease.since if lease else 0.0)

    def _look(self, folder: int, name: str) -> Found:
        before = self._found.get(name)
        try:
            if before is not None and before.signature == _signature(folder, name):
                return before
            signature, content = _content(folder, name)
        except NotAFile as error:
            return Found(None, None, 0.0, str(error))
        except OSError as error:
            return Found(None, None, 0.0, f"cannot be read ({error.strerror})")
        # An empty file says what its name says: a shell writes it with `touch`.
        said = parse(content) if content.strip() else {}
        wrong = "" if said is not None else "is no JSON object"
        return Found(signature, said, self._clock(), wrong)


class NotAFile(Exception):
    """Under a name of a file there is something else, or something far too large."""


def _names(folder: int) -> set[str]:
    with os.scandir(folder) as entries:
        return {entry.name for entry in islice(entries, MOST_FILES)}


def _signature(folder: int, name: str) -> Signature:
    return _signature_of(os.stat(name, dir_fd=folder, follow_symlinks=False))


def _signature_of(found: os.stat_result) -> Signature:
    if not stat.S_ISREG(found.st_mode):
        raise NotAFile("is not a regular file")
    if found.st_size > LARGEST:
        raise NotAFile(f"is larger than {LARGEST // 1024} KiB")
    return Signature(found.st_mtime_ns, found.st_ino, found.st_size)


def _content(folder: int, name: str) -> tuple[Signature, bytes]:
    _signature(folder, name)
    with open(os.open(name, _OPEN, dir_fd=folder), "rb") as file:  # noqa: PTH123
        signature = _signature_of(os.fstat(file.fileno()))
        return signature, file.read(LARGEST + 1)


def _make(path: Path) -> None:
    """Make a folder with the permissions of the one that it lies in, so that whoever set those, set these."""
    try:
        path.mkdir()
    except FileExistsError:
        return
    # Some file systems have no permissions of their own.
    with suppress(OSError):
        path.chmod(stat.S_IMODE(path.parent.stat().st_mode))


def _put(folder: int, name: str, said: Mapping[str, Any]) -> None:
    beside = f".{name}.{uuid.uuid4().hex}"
    try:
        with open(os.open(beside, _CREATE, 0o666, dir_fd=folder), "w") as file:  # noqa: PTH123
            file.write(json.dumps(said))
            with suppress(OSError):
                os.fchmod(file.fileno(), os.fstat(folder).st_mode & 0o664 | 0o600)
        os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise
