"""Whether a run is to be stopped, and how much time is left, as its code sees it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dagster_gpufair.preemption import notices, should_stop, time_left
from dagster_gpufair.preemption.notices import LOOK_EVERY


def test_without_a_channel_nothing_is_to_be_stopped(clock):
    assert not should_stop()
    assert time_left() is None


def test_a_channel_that_is_named_and_not_there_is_none(tmp_path, monkeypatch, clock):
    monkeypatch.setenv("GPUFAIR_CHANNEL", str(tmp_path / "nowhere"))
    assert not should_stop()
    assert time_left() is None


def test_a_notice_is_seen_and_so_is_that_it_is_taken_back(channel, clock):
    assert not should_stop()

    channel.notify(clock.time() + 300)
    clock.now += LOOK_EVERY
    assert should_stop()
    assert time_left() == 300 - LOOK_EVERY
    clock.now += 100
    assert time_left() == 200 - LOOK_EVERY
    clock.now += 1000
    assert time_left() == 0

    channel.spare()
    clock.now += LOOK_EVERY
    assert not should_stop()
    assert time_left() is None


def test_the_folder_is_looked_at_twice_a_second_at_most(channel, clock, monkeypatch):
    looks = []
    list_folder = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: looks.append(path) or list_folder(path))

    for _ in range(1000):
        should_stop()
        clock.now += 1 / 512

    assert len(looks) == 4


@pytest.mark.parametrize("off_by", [-3600.0, 0.0, 3600.0])
def test_the_time_left_is_right_although_this_machines_clock_is_an_hour_off(channel, clock, off_by):
    assert not should_stop()
    clock.now += LOOK_EVERY
    by_the_daemons_clock = clock.time()
    clock.offset += off_by

    channel.notify(by_the_daemons_clock + 300, seconds_left=300)

    left = time_left()
    assert left is not None
    assert 300 - LOOK_EVERY <= left <= 300


def test_a_process_that_starts_under_notice_counts_from_when_it_was_given(channel, clock):
    channel.notify(clock.time() + 300, seconds_left=300)
    clock.now += 120

    assert time_left() == 180


def test_a_deadline_that_is_moved_is_heard_of(channel, clock):
    channel.notify(clock.time() + 300, seconds_left=300)
    assert time_left() == 300

    clock.now += LOOK_EVERY
    channel.notify(clock.time() + 60.25, seconds_left=60.25)

    assert time_left() == 60.25


@pytest.mark.parametrize(
    "junk",
    ["", "{", "[]", "null", '{"until": "soon"}', '{"until": NaN}', '{"until": true}', "[" * 5000],
    ids=["empty", "half", "a list", "null", "text", "nan", "true", "nested"],
)
def test_a_notice_that_cannot_be_read_is_none_and_does_not_end_one(channel, clock, junk):
    channel.put("notice.json", junk)
    assert not should_stop()

    channel.notify(clock.time() + 300)
    clock.now += LOOK_EVERY
    assert should_stop()

    channel.put("notice.json", junk)
    clock.now += LOOK_EVERY
    assert should_stop()


def test_a_pipe_in_place_of_the_notice_holds_nobody_up(channel, clock):
    os.mkfifo(channel.folder / "notice.json")
    assert not should_stop()


def test_a_channel_that_is_gone_takes_no_notice_back(channel, clock):
    channel.notify(clock.time() + 300)
    assert should_stop()

    shutil.rmtree(channel.folder)
    clock.now += LOOK_EVERY

    assert should_stop()
    assert time_left() == 300 - LOOK_EVERY


def test_who_asked_is_logged_once(channel, clock, caplog):
    channel.notify(clock.time() + 300, **{"for": "finetune (nlp, 8 GPUs)"})
    for _ in range(3):
        should_stop()
        clock.now += LOOK_EVERY

    [record] = caplog.records
    assert record.getMessage() == (
        "This run is to be stopped in 300 s for finetune (nlp, 8 GPUs) (rule: reclaim)."
    )


def test_two_channels_are_told_apart(channel, clock, tmp_path, monkeypatch):
    channel.notify(clock.time() + 300)
    assert should_stop()

    other = tmp_path / "channels" / "run2"
    other.mkdir()
    monkeypatch.setenv("GPUFAIR_CHANNEL", str(other))
    assert not should_stop()


def test_what_is_kept_of_channels_is_bounded(clock, tmp_path, monkeypatch):
    for number in range(notices._MOST_WATCHED * 2):
        monkeypatch.setenv("GPUFAIR_CHANNEL", str(tmp_path / str(number)))
        should_stop()

    assert len(notices._watches) <= notices._MOST_WATCHED


def test_a_folder_may_be_named_from_where_the_process_started(channel, clock, monkeypatch):
    monkeypatch.setenv("GPUFAIR_CHANNEL", os.path.relpath(channel.folder))
    channel.notify(clock.time() + 300)
    assert should_stop()
    assert Path(os.environ["GPUFAIR_CHANNEL"]).is_dir()
