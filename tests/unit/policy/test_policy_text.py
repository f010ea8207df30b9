"""Files and texts that are no policy, before anybody looks at what they say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from dagster_gpufair.policy import yaml_text
from dagster_gpufair.policy.loading import parse_policy, policy_from, read_policy
from dagster_gpufair.policy.problems import PolicyError

SOUND = "pools: {h100: {gpus: 8}}\nteams: {nlp: {quota: {h100: 8}}}\n"


@pytest.fixture(params=["C", "Python"])
def either_parser(request, monkeypatch):
    """PyYAML may come without libyaml."""
    if request.param == "Python":
        monkeypatch.setattr(yaml_text, "_SafeLoader", yaml.SafeLoader)


UNREADABLE = [
    ("empty", "", "", "is empty"),
    ("only comments", "# later\n", "", "is empty"),
    ("a list", "- a\n- b\n", "", "must be keys and values, from pools: and teams: on, not a list"),
    ("a sentence", "hello", "", "not 'hello'"),
    ("not UTF-8", b"pools:\n  h\xff: 1", "line 2", "is not UTF-8 text (byte 0xff)"),
    ("UTF-16, as some editors save", SOUND.encode("utf-16"), "", "is UTF-16 text"),
    ("a program", b"\x7fELF\x02\x01\x01\x00", "line 1, column 1", "a character that is not text"),
    ("a lone surrogate", "a: \ud800", "line 1, column 4", "not text (U+D800)"),
    ("a tab", "pools:\n\th100: {gpus: 8}", "line 2, column 1", "a tab; indent with spaces"),
    ("a colon too many", "pools: h100: 8", "line 1, column 12", "indent it right, or quote it"),
    ("an open bracket", "pools: {h100: {gpus: 8}\n", "line 2, column 1", "a bracket or a comma"),
    ("an open quote", "pools: 'h100", "line 1, column 13", "a quote that is not closed"),
    ("an @", "pools: @h100", "line 1, column 8", "a value that begins with @ must be quoted"),
    ("an unknown alias", "pools: *h100", "line 1, column 8", "no &name stands before"),
    ("two documents", "--- {}\n--- {}\n", "line 2, column 1", "a second document"),
    ("wrong indentation", "pools:\n  a: 1\n teams: 2\n", "line 3, column 2", "the indentation"),
    ("a key without colon", "pools: {}\nteams\n", "line 3, column 1", "a key without its ':'"),
    ("an alias of itself", "&a [*a]", "[0][0][0][0]", "nested deeper than 32 levels"),
]


@pytest.mark.parametrize(
    ("text", "path", "message"), [row[1:] for row in UNREADABLE], ids=[row[0] for row in UNREADABLE]
)
@pytest.mark.usefixtures("either_parser")
def test_a_text_that_cannot_be_read_says_where_and_why(text, path, message, errors_in):
    [(where, said)] = errors_in(text)
    assert where == path
    assert message in said


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[{a: "])
@pytest.mark.usefixtures("either_parser")
def test_endless_nesting_is_refused(opening, errors_in):
    [(path, message)] = errors_in(opening * (900_000 // len(opening)))
    assert path.startswith("line 1, column ")
    assert message == "is nested deeper than 32 levels"


@pytest.mark.usefixtures("either_parser")
def test_a_bomb_of_aliases_is_refused(errors_in):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 9):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{aliases}]")
    assert errors_in("\n".join(lines)) == [
        ("", "has more than 100000 values, its *aliases written out")
    ]


def test_a_huge_text_is_refused(errors_in):
    assert errors_in("#" * (1024 * 1024 + 1)) == [
        ("", "is larger than 1 MiB, the most that a policy may have; is it the right file?")
    ]
    assert errors_in(SOUND + "#" * (1024 * 1024 - len(SOUND))) == []


@pytest.mark.usefixtures("either_parser")
def test_a_team_that_is_there_twice_is_an_error(errors_in):
    text = (
        "pools: {h100: {gpus: 8}}\nteams:\n  nlp: {quota: {h100: 8}}\n  nlp: {quota: {h100: 4}}\n"
    )
    assert errors_in(text) == [("teams.nlp", "is there twice, lines 3 and 4; keep one")]


@pytest.mark.parametrize(
    ("key", "reads_as"),
    [
        ("1", "a number"),
        ("1.5", "a number"),
        ("on", "true or false"),
        ("no", "true or false"),
        ("~", "nothing"),
        ("2026-06-01", "a date"),
    ],
)
def test_a_name_that_yaml_does_not_read_as_text_must_be_quoted(key, reads_as, errors_in):
    text = f"pools: {{h100: {{gpus: 8}}}}\nteams:\n  {key}: {{quota: {{h100: 8}}}}\n"
    assert errors_in(text) == [
        (f"teams.{key}", f"YAML reads this key as {reads_as}; quote it: '{key}'")
    ]
    if key != "~":
        assert errors_in(text.replace(f"{key}:", f'"{key}":')) == []


def test_keys_that_are_no_text_at_all(errors_in):
    text = f"{SOUND}? [a, b]\n: 1\n"
    assert ("", "line 3: a key must be plain text") in errors_in(text)


@pytest.mark.parametrize(
    ("value", "tag"),
    [
        ("!!python/object/apply:os.getcwd []", "!!python/object/apply:os.getcwd"),
        ("!!set {a}", "!!set"),
        ("!!binary aGVsbG8=", "!!binary"),
        ("!mine 5", "!mine"),
    ],
)
def test_tags_are_refused(value, tag, errors_in):
    found = dict(errors_in(f"{SOUND}version: {value}\n"))
    assert found["version"] == f"the YAML tag '{tag}' has no place here; delete it"


@pytest.mark.parametrize("value", ["!!int x", "!!bool x", "!!timestamp x", "!!float x", "0b_"])
def test_a_value_that_is_not_what_its_tag_says(value, errors_in):
    found = dict(errors_in(f"{SOUND}version: {value}\n"))
    assert "if it is text, quote it" in found["version"]


def test_teams_may_share_keys_through_an_anchor():
    policy = parse_policy("""
pools: {h100: {gpus: 8}, t4: {gpus: 8}}
teams:
  nlp: &usual {quota: {h100: 4}, tiers: [standard]}
  vision: {<<: *usual, weight: 2}
  speech: {<<: [*usual, {weight: 3}], quota: {t4: 1}}
""")
    assert policy.teams["vision"].quota == {"h100": 4000}
    assert policy.teams["vision"].weight == 2
    assert policy.teams["speech"].quota == {"t4": 1000}
    assert policy.teams["speech"].tiers == ["standard"]
    assert policy.teams["speech"].weight == 3


def test_a_merge_of_something_else_is_an_error(errors_in):
    text = "pools: {h100: {gpus: 8}}\nteams: {nlp: {<<: 5, quota: {h100: 8}}}"
    assert errors_in(text) == [("teams.nlp.<<", "takes an alias of a group of keys: <<: *name")]


def test_a_file_is_read_with_its_text(tmp_path):
    file = tmp_path / "gpufair.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + SOUND.encode())
    text, policy = read_policy(file)
    assert text == SOUND
    assert policy == parse_policy(SOUND) == parse_policy(SOUND.encode())


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(PolicyError) as caught:
        read_policy(tmp_path / "gpufair.yaml")
    assert (
        str(caught.value)
        == f"{tmp_path / 'gpufair.yaml'}: 1 error\n  no such file; `gpufair init` writes one"
    )


def test_a_folder_instead_of_a_file(tmp_path):
    with pytest.raises(PolicyError, match="is a folder"):
        read_policy(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_of_somebody_else(tmp_path):
    file = tmp_path / "gpufair.yaml"
    file.write_text(SOUND)
    file.chmod(0)
    with pytest.raises(PolicyError, match="may not be read"):
        read_policy(file)


def test_a_device_that_never_ends():
    with pytest.raises(PolicyError, match="is a device; give a file"):
        read_policy("/dev/zero")


def test_a_pipe_that_nobody_writes_to(tmp_path):
    os.mkfifo(tmp_path / "gpufair.yaml")
    with pytest.raises(PolicyError, match="is a named pipe; give a file"):
        read_policy(tmp_path / "gpufair.yaml")


def test_a_file_of_many_gigabytes(tmp_path):
    with (tmp_path / "gpufair.yaml").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(PolicyError, match="larger than 1 MiB"):
        read_policy(tmp_path / "gpufair.yaml")


def test_a_link_to_a_file_as_kubernetes_mounts_one(tmp_path):
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "gpufair.yaml").write_text(SOUND)
    (tmp_path / "gpufair.yaml").symlink_to(Path("..data", "gpufair.yaml"))
    assert read_policy(tmp_path / "gpufair.yaml")[1] == parse_policy(SOUND)


def test_a_path_that_cannot_be():
    with pytest.raises(PolicyError, match="cannot be read"):
        read_policy("a\0b")


def test_the_report_has_one_column_of_paths_and_says_what_follows():
    text = """
pools: {h100: {gpus: 16}}
teams:
  nlp: {quota: {h100: 8}}
  vision: {quota: {h100: 6}, qouta: {}}
  speech: {quota: {h100: 4}}
"""
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    assert caught.value.report("nothing changed (v12 stays in force)") == (
        "gpufair.yaml: 2 errors, nothing changed (v12 stays in force)\n"
        "  teams.vision.qouta    unknown key; did you mean 'quota'?\n"
        "  teams: quota of h100  nlp 8 + vision 6 + speech 4 = 18, the pool has 16; lower one by 2"
    )


def test_a_report_of_very_many_errors_is_cut():
    text = "".join(f"key{number}: 1\n" for number in range(500))
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    assert len(caught.value.problems) == 502
    assert str(caught.value).endswith("  and 452 more")


def test_a_policy_inside_another_file_names_the_path_there():
    with pytest.raises(PolicyError) as caught:
        policy_from({"pools": {}, "teams": {"a": {"qouta": 1}}}, "case.yaml", under="policy")
    assert caught.value.source == "case.yaml"
    assert [problem.path for problem in caught.value.problems] == [
        "policy.teams.a.qouta",
        "policy.pools",
    ]


@pytest.mark.parametrize("data", [None, [], 5])
def test_a_policy_inside_another_file_that_is_no_policy(data):
    with pytest.raises(PolicyError) as caught:
        policy_from(data, "case.yaml", under="policy")
    assert [problem.path for problem in caught.value.problems] == ["policy"]
