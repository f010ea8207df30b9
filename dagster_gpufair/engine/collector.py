"""Python's cyclic garbage collector, kept from running where many small values are made at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """No collection until the end of the block.

    A decision makes many small values that all live until it is made: to look through them again and again
    would find nothing, and take a third of its time on a long queue. So does reading a long list of runs.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
