"""Text that cannot act, amounts that read at a glance, and tables that lose nothing."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from dagster_gpufair.cli.moment.current import short_ids
from dagster_gpufair.cli.output.tables import Column, table
from dagster_gpufair.cli.output.text import number, percent, plain, whole_sentence
from dagster_gpufair.cli.output.times import age, age_in_words, clock, moment

COLUMNS = [Column("run"), Column("asks", right=True), Column("why", wraps=True)]
ROWS = [
    ("3f2a91c0", "8", "needs 8 on one node, and 5 are free, 4 of them on one node"),
    ("90c1d4e2", "16", ""),
]


def printed(width: int, columns: list[Column] = COLUMNS) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    console.print(table(columns, [row[: len(columns)] for row in ROWS]), crop=False)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nlp/pretrain", "nlp/pretrain"),
        ("[red]x[/red] :boom:", "[red]x[/red] :boom:"),
        ("发射 🚀", "发射 🚀"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b[31m\x00\x7f", "\\x1b[31m\\x00\\x7f"),
        ("\x9b31m\u202e\u200b", "\\x9b31m\\u202e\\u200b"),
        ("half \ud83d", "half \\ud83d"),
        ("", ""),
    ],
)
def test_what_is_not_printable_is_shown_as_its_escape(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize("text", ["x" * 10_000, "\U0010ffff" * 10_000])
def test_what_is_long_is_cut(text: str) -> None:
    assert len(plain(text)) == 48
    assert plain(text).endswith("…")
    assert plain("x" * 48) == "x" * 48


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0s"),
        (0.4, "0s"),
        (59.9, "59s"),
        (61, "1m"),
        (41 * 60 + 59, "41m"),
        (72 * 60, "1h12m"),
        (3 * 86400 + 4 * 3600 + 5 * 60, "3d4h"),
    ],
)
def test_ages(seconds: float, shown: str) -> None:
    assert age(seconds) == shown


def test_ages_in_sentences() -> None:
    assert [age_in_words(seconds) for seconds in (42, 41 * 60 + 59, 72 * 60, 25 * 3600)] == [
        "42 s",
        "41 min",
        "1 h 12 min",
        "1 day 1 h",
    ]
    assert age_in_words(21 * 86400) == "21 days"


def test_times_name_their_zone_and_the_day_if_it_is_not_the_day_of_now() -> None:
    noon = time.mktime((2026, 6, 1, 12, 0, 7, 0, 0, -1))
    zone = time.strftime("%Z", time.localtime(noon))
    assert clock(noon, noon) == f"12:00 {zone}"
    assert clock(noon, noon, seconds=True) == f"12:00:07 {zone}"
    assert clock(noon + 86400, noon) == f"2026-06-02 12:00 {zone}"
    assert moment(noon) == f"2026-06-01 12:00:07 {zone}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("it asks for 9 h100", "It asks for 9 h100."),
        ("gpufair/gpus is 'x'; write 8", "gpufair/gpus is 'x'; write 8."),
        ("What now?", "What now?"),
        ("", ""),
    ],
)
def test_whole_sentences(text: str, shown: str) -> None:
    assert whole_sentence(text) == shown


def test_numbers() -> None:
    assert (number(3567.6), number(-200.0), number(0.25, 2)) == ("3,568", "-200", "0.25")
    assert percent(0.3333) == "33 %"


def test_ids_are_short_and_whole_where_short_would_not_do() -> None:
    ids = ["3f2a91c0-1", "90c1d4e2-1", "90c1d4e2-2", "x\n"]
    assert short_ids(ids) == {
        "3f2a91c0-1": "3f2a91c0",
        "90c1d4e2-1": "90c1d4e2-1",
        "90c1d4e2-2": "90c1d4e2-2",
        "x\n": "x\\n",
    }


def test_a_table_with_room_for_its_sentences() -> None:
    assert printed(120) == [
        "run       asks  why",
        "3f2a91c0     8  needs 8 on one node, and 5 are free, 4 of them on one node",
        "90c1d4e2    16",
    ]


def test_a_table_without_room_tells_its_sentences_below() -> None:
    assert printed(40) == [
        "run       asks",
        "3f2a91c0     8",
        "    needs 8 on one node, and 5 are free,",
        "    4 of them on one node",
        "90c1d4e2    16",
    ]


def test_a_narrow_table_leaves_out_the_least_important_columns_first() -> None:
    columns = [Column("run"), Column("asks", right=True, drop=2), Column("why", drop=1)]
    assert printed(100, columns)[0] == "run       asks  why"
    assert printed(70, columns)[0] == "run       why"
    assert printed(20, columns) == ["run", "3f2a91c0", "90c1d4e2"]


def test_a_name_is_folded_where_leaving_out_is_not_enough() -> None:
    columns = [Column("run"), Column("asks", right=True), Column("why")]
    lines = printed(40, columns)
    assert max(len(line) for line in lines) <= 40
    assert " ".join(" ".join(lines).split()).count("on one node") == 2, "nothing is lost"


@pytest.mark.parametrize("width", [5, 12])
def test_a_table_never_cuts_a_cell(width: int) -> None:
    narrow = printed(width, COLUMNS[:2])
    assert narrow == ["run       asks", "3f2a91c0     8", "90c1d4e2    16"]
