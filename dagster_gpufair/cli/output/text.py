"""Text as a terminal may be given it: names and messages made harmless, amounts and counts.

Names and messages come from tags, jobs and errors that anybody may have written. `plain` shows what in
them would act on a terminal.
"""

from __future__ import annotations

LONGEST_NAME = 48
LONGEST_SENTENCE = 2000
"""Characters; what is longer is cut, so that one text does not hide all others."""
_FIRST_WORDS = frozenset(
    (
        "a",
        "an",
        "another",
        "asset",
        "assets",
        "it",
        "no",
        "team",
        "the",
        "these",
        "this",
        "tier",
        "unknown",
    )
)
"""Words that messages begin with. Others may be names, which are told as they are written."""


def plain(text: str, longest: int = LONGEST_NAME) -> str:
    """The text on one line, with everything that is not printable as its escape: ``\\x1b``, ``\\n``."""
    escaped = "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode()
        for sign in text[: longest + 1]
    )
    return escaped if len(escaped) <= longest else f"{escaped[: longest - 1]}…"


def sentence(text: str) -> str:
    """A message as `plain` text, cut only where no message ever ends."""
    return plain(text, LONGEST_SENTENCE)


def whole_sentence(text: str) -> str:
    """The same with a capital, unless it begins with a name, and a period at its end."""
    first = text.partition(" ")[0]
    if first in _FIRST_WORDS:
        text = text[:1].upper() + text[1:]
    if text and text[-1] not in ".!?":
        text += "."
    return sentence(text)


def number(value: float, decimals: int = 0) -> str:
    """``3568.2`` → ``3,568``."""
    return f"{value:,.{decimals}f}"


def percent(part: float) -> str:
    """``0.333`` → ``33 %``."""
    return f"{part:.0%}".replace("%", " %")


def counted(count: int, what: str) -> str:
    """``1 run``, ``3 runs``."""
    return f"{count} {what}{'' if count == 1 else 's'}"
