"""What is wrong with a policy, in words its author can act on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from typing import Any, Literal

_LONGEST_VALUE = 60
_MOST_NAMES = 12
_MOST_LINES = 50
_WIDEST_PATH = 48


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to fix, at one place of the policy.

    ``path`` is the dotted path of a key (``teams.vision.quota``), a place in the text (``line 3,
    column 5``), or empty for the whole file. A note says something worth knowing and stops nothing.
    """

    path: str
    message: str
    severity: Literal["error", "note"] = "error"

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class PolicyError(Exception):
    """A policy that cannot take effect, with everything that is wrong with it.

    ``source`` names where it came from: usually the file's name as the user gave it.
    """

    def __init__(self, problems: Sequence[Problem], source: str = "gpufair.yaml") -> None:
        super().__init__(problems, source)
        self.problems = tuple(problems)
        self.source = source

    def __str__(self) -> str:
        return self.report()

    def report(self, consequence: str = "") -> str:
        """The errors as text: a headline, then one line each.

        ``consequence`` ends the headline, such as ``nothing changed (v12 stays in force)``.
        """
        count = len(self.problems)
        headline = f"{self.source}: {count} error{'' if count == 1 else 's'}"
        if consequence:
            headline += f", {consequence}"
        return "\n".join([headline, *problem_lines(self.problems)])


class PolicyFileMissing(PolicyError):
    """There is no policy file under the path."""


def problem_lines(problems: Sequence[Problem]) -> list[str]:
    """One indented line for each, the messages in one column; a very long list is cut short."""
    shown_here = problems[:_MOST_LINES]
    widths = [len(problem.path) for problem in shown_here if problem.path]
    width = min(max(widths, default=0), _WIDEST_PATH)
    lines = [
        f"  {problem.path:<{width}}  {problem.message}" if problem.path else f"  {problem.message}"
        for problem in shown_here
    ]
    if len(problems) > _MOST_LINES:
        lines.append(f"  and {len(problems) - _MOST_LINES} more")
    return lines


def dotted(*parts: str | int) -> str:
    """The path of a key: ``teams.vision.quota``, ``grants[0].from``; odd keys are quoted."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            plain = part.isprintable() and part and " " not in part and len(part) <= _LONGEST_VALUE
            path += f"{'.' if path else ''}{part if plain else shown(part)}"
    return path


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean 'quota'?``, or nothing when no known name is close. Case does not matter."""
    by_folded = {other.casefold(): other for other in known}
    close = get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return f"did you mean '{by_folded[close[0]]}'?" if close else ""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """What to say of a name that is not known: which it may have meant, and which exist."""
    names = list(known)
    hint = did_you_mean(name, names)
    return f"unknown {what} {shown(name)}{'; ' + hint if hint else ''} (known: {listed(names)})"


def listed(names: Iterable[str]) -> str:
    """Names in a sentence; of very many only the first."""
    names = list(names)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return (", ".join(names[:_MOST_NAMES]) or "none") + more


def shown(value: Any) -> str:
    """A value as a message quotes it: short, on one line, and as its author wrote it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a group of keys"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, date):
        return value.isoformat()
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits.
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
