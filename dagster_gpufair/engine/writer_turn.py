"""The turn of the ledger's one writer: taking it, keeping it, and writing only while it lasts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from dagster_gpufair.ledger import writer
from dagster_gpufair.ledger.connect import Ledger


class Overtaken(Exception):
    """The ledger has gone on without this daemon: nothing of what it was about to do counts."""


class WriterTurn:
    """This daemon as the one writer: ``epoch`` is the number of its turn, None while another writes."""

    def __init__(self, ledger: Ledger):
        self.epoch: int | None = None
        self._ledger = ledger
        self._holder = writer.Holder.here(time.time())
        self._in_doubt = True

    @property
    def host(self) -> str:
        """Where this daemon runs."""
        return self._holder.host

    def take(self, session: Session) -> int | None:
        """Take or renew the turn: its number, to `begin` once committed; None while another has it."""
        epoch = writer.take(session, self._holder, writer.turn_clock(session))
        if epoch is None:
            self.epoch = None
        return epoch

    def goes_on(self, epoch: int) -> bool:
        """Whether it is the turn that was ours before, and all that was begun in it has been done.

        If not, what broke off, or another writer, may have come further in the ledger than memory has it.
        """
        return epoch == self.epoch and not self._in_doubt

    def begin(self, epoch: int) -> None:
        """The turn has been committed; it is in doubt until `end`."""
        self.epoch = epoch
        self._in_doubt = True

    def end(self) -> None:
        """All that was begun in this turn has been done."""
        self._in_doubt = False

    def give_up(self) -> None:
        """Let another daemon become the writer at once."""
        with self._ledger.writing() as session:
            writer.release(session, self._holder.id)
        self.epoch = None

    @contextmanager
    def writing(self, epoch: int | None = None) -> Iterator[Session]:
        """A writing transaction of the ledger's that only the one writer has; it renews the turn.

        Nobody becomes the writer before it ends, however long this process sleeps in between.

        Args:
            epoch: the turn it belongs to, where that may be over; by default the one that goes on.

        Raises:
            Overtaken: if another daemon is, or was, the writer; nothing is written then.
        """
        wanted = self.epoch if epoch is None else epoch
        with self._ledger.writing() as session:
            if wanted is None or not writer.still(
                session, self._holder.id, wanted, writer.turn_clock(session)
            ):
                if wanted == self.epoch:
                    self.epoch = None
                raise Overtaken("another daemon has taken over the GPU queue")
            yield session
