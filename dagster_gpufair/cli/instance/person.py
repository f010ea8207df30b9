"""Who types a command: a name for the record, not a proof."""

from __future__ import annotations

import getpass
import socket


def person() -> str:
    """``ann on build-3``."""
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):
        user = "somebody"
    return f"{user} on {socket.gethostname()}"
