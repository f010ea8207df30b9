"""What can be wrong with the ledger, said so that a platform engineer knows what to do."""

from __future__ import annotations


class LedgerError(Exception):
    """The ledger could not do what was asked of it. The message is for people."""


class LedgerTooNew(LedgerError):
    """A newer version of the package has changed the tables; this one must not touch them."""


class LedgerUnavailable(LedgerError):
    """The database cannot be used now (stopped, full, locked, read-only); trying again may help."""


class NotQueued(LedgerError):
    """A grant for a request that is not waiting: granted already, cancelled, or unknown."""
