"""How long jobs usually last, and when what runs will probably be over."""

from __future__ import annotations

import pytest
from ledger_samples import asked, granted
from sqlalchemy.orm import Session

from dagster_gpufair.ledger import durations, lifecycle
from dagster_gpufair.ledger.connect import Ledger
from dagster_gpufair.ledger.durations import COUNTED, LOOKED_AT

NOW = 1_000_000.0
HOUR = 3600.0


def ran(
    session: Session,
    *hours: float,
    job: str = "train",
    how: str = "success",
    first: int = 0,
    **more: str,
) -> None:
    """Runs of a job one after another, all of them before `NOW`, that lasted so many hours each."""
    start = 1000.0 * (first + 1)
    for number, length in enumerate(hours, start=first):
        id_ = f"{more.get('team', 'nlp')}-{job}-{how}-{number}"
        lease = granted(session, id_, 1, at=start, node=None, pool="t4", job_name=job, **more)
        lifecycle.release(session, lease, start + length * HOUR, how)
        start += 1.0


def test_it_is_the_median_of_what_succeeded(ledger: Ledger) -> None:
    with ledger.writing() as session:
        ran(session, 1, 2, 30)
        ran(session, 0.1, 0.1, 0.1, 0.1, how="failure")
        ran(session, 9, 9, 9, how="canceled")
        ran(session, 5, 6, job="eval")
        ran(session, 7, 7, 8, 8, job="train", team="vision")
        known = [("nlp", "train"), ("nlp", "eval"), ("vision", "train"), ("nlp", "new")]
        usual = durations.usual_durations(session, NOW, known)
        assert durations.usual_durations(session, NOW) == {}, "no job holds GPUs"
        assert durations.usual_durations(session, NOW, []) == {}
        before = durations.usual_durations(session, 1002.0 + HOUR, known)
    assert usual == {("nlp", "train"): 2 * HOUR, ("vision", "train"): 7.5 * HOUR}
    assert before == {}, "only the first had ended then"


def test_what_never_ran_or_was_never_granted_does_not_count(ledger: Ledger) -> None:
    with ledger.writing() as session:
        ran(session, 1, 1)
        lifecycle.submit(session, asked("void", job_name="train"))
        void = granted(session, "void", 1, at=1000.0, node=None, pool="t4")
        lifecycle.recall(session, void, 1000.0 + HOUR, "unreachable")
        void = granted(session, "void", 1, at=9000.0, node=None, pool="t4")
        lifecycle.release(session, void, 9000.0 + HOUR, "failure")
        found = lifecycle.find(session, asked("found", 1, job_name="train"), "t4", {}, 1000.0)
        assert found is not None
        lifecycle.release(session, found, 1000.0 + HOUR, "success")
        assert durations.usual_durations(session, NOW, [("nlp", "train")]) == {}
        ran(session, 1, first=2)
        assert durations.usual_durations(session, NOW, [("nlp", "train")]) == {
            ("nlp", "train"): HOUR
        }


def test_only_the_last_ones_count(ledger: Ledger) -> None:
    with ledger.writing() as session:
        ran(session, *[10.0] * COUNTED)
        ran(session, *[1.0] * COUNTED, first=500)
        assert durations.usual_durations(session, NOW, [("nlp", "train")]) == {
            ("nlp", "train"): HOUR
        }
        ran(session, *[0.1] * (LOOKED_AT - 2), how="failure", first=900)
        assert durations.usual_durations(session, NOW, [("nlp", "train")]) == {}, "it fails of late"


def test_when_what_runs_will_probably_be_over(ledger: Ledger) -> None:
    def running(id_: str, at: float, **more: object) -> None:
        granted(session, id_, 1, at=at, node=None, pool="t4", **{"job_name": "train", **more})

    with ledger.writing() as session:
        ran(session, 1, 1, 1)
        running("young", NOW - 60)
        running("bounded", NOW - 60, max_duration=600.0)
        running("long", NOW - 60, max_duration=9 * HOUR)
        running("overdue", NOW - 2 * HOUR)
        running("other", NOW - 60, job_name="eval")
        running("elsewhere", NOW - 60, team="vision")
        lifecycle.find(session, asked("found", 1, job_name="train"), "t4", {}, NOW - 60)
        ends = durations.usual_ends(session, NOW)
        assert durations.usual_durations(session, NOW) == {("nlp", "train"): HOUR}
    assert ends == {
        "young": pytest.approx(NOW - 60 + HOUR),
        "bounded": pytest.approx(NOW - 60 + 600),
        "long": pytest.approx(NOW - 60 + HOUR),
    }


def test_what_waits_takes_as_long_as_its_job_usually_does(ledger: Ledger) -> None:
    with ledger.writing() as session:
        ran(session, 1, 1, 2)
        for id_, job in (("again", "train"), ("new", "eval")):
            lifecycle.submit(session, asked(id_, 1, job_name=job))
        assert durations.usual_lengths(session, NOW) == {"again": HOUR}


def test_many_jobs_at_once(ledger: Ledger) -> None:
    with ledger.writing() as session:
        for number in range(60):
            ran(session, 1, 1, 1, job=f"job{number}")
            granted(session, f"runs-{number}", 1, NOW, None, "t4", job_name=f"job{number}")
        assert len(durations.usual_durations(session, NOW)) == 60
        assert set(durations.usual_ends(session, NOW).values()) == {NOW + HOUR}
