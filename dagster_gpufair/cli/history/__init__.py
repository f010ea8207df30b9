"""``gpufair history`` and ``refused``: what the ledger remembers of runs."""
