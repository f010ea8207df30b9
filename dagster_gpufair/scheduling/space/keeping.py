"""What is kept of a node's free GPUs for promises, while those under notice leave.

A promise is fulfilled by the GPUs of its node that its own victims will leave, then by what leaves for
nobody who was promised any of that node, and only for the rest by some that are free already: those are kept.
"""

from __future__ import annotations

from collections.abc import Iterator


class Keeping:
    """What is promised on each node, to whom, and what is leaving, for whom if that is known."""

    def __init__(self) -> None:
        self._promised: dict[str, dict[str, int]] = {}
        self._leaving: dict[str, dict[str | None, int]] = {}

    def copy(self) -> Keeping:
        """The same, to try something on."""
        other = Keeping()
        other._promised = {node: dict(parts) for node, parts in self._promised.items()}
        other._leaving = {node: dict(parts) for node, parts in self._leaving.items()}
        return other

    def promise(self, node: str, owner: str, gpus: int) -> None:
        """So many more are promised; fewer, if less than nothing."""
        parts = self._promised.setdefault(node, {})
        parts[owner] = parts.get(owner, 0) + gpus

    def leave(self, node: str, owner: str | None, gpus: int) -> None:
        """So many more will leave; fewer, if less than nothing."""
        parts = self._leaving.setdefault(node, {})
        parts[owner] = parts.get(owner, 0) + gpus

    def kept(self, node: str, but_for: str | None = None) -> int:
        """What is kept of the free GPUs of a node; ``but_for`` one of the promises."""
        promised, leaving = self._promised.get(node), self._leaving.get(node, {})
        if not promised:
            return 0
        missing = sum(
            max(0, gpus - leaving.get(owner, 0))
            for owner, gpus in promised.items()
            if owner != but_for
        )
        for_nobody = sum(gpus for owner, gpus in leaving.items() if not promised.get(owner or ""))
        return max(0, missing - for_nobody)

    def promised(self, node: str) -> int:
        """All that is promised of a node."""
        return sum(self._promised.get(node, {}).values())

    def leaving(self, node: str) -> int:
        """All that will leave a node."""
        return sum(self._leaving.get(node, {}).values())

    def nodes(self) -> Iterator[str]:
        """Where anything is promised or leaving."""
        yield from self._promised.keys() | self._leaving.keys()
