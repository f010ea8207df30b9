"""Ctrl-C and its like, heeded only where nothing is left half done."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_HEARD = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupted(Exception):
    """Somebody wants the demo to end."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interrupts:
    """Keeps the signals that end a program until they are heeded.

    While it is entered, none of them is ignored or acted on by itself. So a program that is started
    meanwhile has them as a program has them by default, even when a script started this one in the
    background, where Ctrl-C is ignored.
    """

    def __init__(self) -> None:
        self.count = 0
        self._number: int | None = None
        self._heeding = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for name in _HEARD:
            number = getattr(signal, name, None)
            # Under nohup, a terminal that is closed is no reason to end.
            if number is None or (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
                continue
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Within it, a signal ends what is going on, also one that came before.

        Raises:
            Interrupted: once; what is done because of it is not interrupted again.
        """
        if self._number is not None:
            raise Interrupted(self._number)
        self._heeding = True
        try:
            yield
        finally:
            self._heeding = False

    def wait(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            Interrupted: as soon as a signal comes.
        """
        with self.heeded():
            time.sleep(seconds)

    def _heard(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        if self._number is None:
            self._number = number
        if self._heeding:
            self._heeding = False
            raise Interrupted(self._number)
