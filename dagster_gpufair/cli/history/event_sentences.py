"""What an event of a run says in a sentence. A kind that is not known here is told with its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dagster_gpufair.cli.output.text import counted, plain, sentence, whole_sentence
from dagster_gpufair.cli.output.times import after, age_in_words, clock
from dagster_gpufair.ledger.events import Event
from dagster_gpufair.policy.quantities import ONE_GPU, duration_in_words, format_gpus

_SHORT = 8
_INTERNAL = ("lease", "request", "policy_version")
"""Numbers of rows, which say nothing to people."""

_CLASSES = {"borrowing": "borrowed", "shared": "guaranteed by its team"}
"""Classes of starts as they are recorded, where people say another word."""

Names = Mapping[str, str]
"""Run ids as people read them."""


def sentence_of(event: Event, names: Names | None = None) -> str:
    """``8 h100 on h1 are granted to the run, guaranteed, after it waited 12 min.``"""
    words = _WORDS.get(event.kind)
    if words is not None:
        try:
            return whole_sentence(words(event, names or {}))
        except (KeyError, TypeError, ValueError, AttributeError):
            # An event of another version: what it holds is still worth telling.
            pass
    return _plainly(event)


def _plainly(event: Event) -> str:
    said = ", ".join(
        f"{key} {_value(value)}"
        for key, value in event.data.items()
        if key not in _INTERNAL and value not in (None, "", {}, [])
    )
    return sentence(f"{event.kind}{f': {said}' if said else ''}.")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_value(each)}" for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(_value(each) for each in value)
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _amount(event: Event) -> str:
    """``8 h100 on h1``."""
    nodes = event.data.get("nodes") or {}
    where = f" on {', '.join(plain(node) for node in sorted(nodes))}" if nodes else ""
    return f"{format_gpus(int(event.data['gpus']))} {plain(event.pool or 'GPUs')}{where}"


def _are(event: Event) -> str:
    return "is" if int(event.data["gpus"]) <= ONE_GPU else "are"


def _name(id_: str, names: Names) -> str:
    return names.get(id_, plain(id_[:_SHORT]))


def _submitted(event: Event, _: Names) -> str:
    data = event.data
    most, least = int(data["gpus"]), int(data.get("min_gpus") or data["gpus"])
    amount = format_gpus(most) if least >= most else f"{format_gpus(least)} to {format_gpus(most)}"
    pools = " or ".join(plain(pool) for pool in data["pools"])
    lasts = data.get("max_duration")
    atmost = f", for at most {duration_in_words(float(lasts))}" if lasts else ""
    return f"the run is submitted: team {plain(data['team'])} asks for {amount} {pools}{atmost}"


def _waits(event: Event, _: Names) -> str:
    return f"the run waits ({plain(event.data['reason'])}): {event.data['why']}"


def _refused(event: Event, _: Names) -> str:
    return f"the run is refused ({plain(event.data['code'])}): {event.data['message']}"


def _reserved(event: Event, _: Names) -> str:
    data = event.data
    what = _amount(event) + (" of its team's quota" if data.get("of_quota") else "")
    at = data.get("at")
    when = f", from {clock(float(at), event.at)} at the latest" if at is not None else ""
    return f"{what} {_are(event)} reserved for the run{when}"


def _unreserved(event: Event, names: Names) -> str:
    instead = [_name(str(id_), names) for id_ in event.data.get("instead") or ()]
    now_for = f"; {' and '.join(instead)} has it now" if len(instead) == 1 else ""
    if len(instead) > 1:
        now_for = f"; {' and '.join(instead)} have reservations now"
    where = f" in {plain(event.pool)}" if event.pool else ""
    return f"the run's reservation{where} ends{now_for}"


def _granted(event: Event, _: Names) -> str:
    data = event.data
    class_ = str(data.get("class") or "")
    as_ = f", {plain(_CLASSES.get(class_, class_))}" if class_ else ""
    submitted = data.get("submitted")
    waited = f", {after(event.at - float(submitted))}" if submitted else ""
    return f"{_amount(event)} {_are(event)} granted to the run{as_}{waited}"


def _ungated(event: Event, _: Names) -> str:
    return f"the run is found to use {_amount(event)} without a grant: this queue did not start it"


def _recalled(event: Event, _: Names) -> str:
    why = event.data.get("reason")
    return f"the run waits again{f': {why}' if why else ''}"


def _released(event: Event, _: Names) -> str:
    data = event.data
    why = f" ({plain(str(data['reason']))})" if data.get("reason") else ""
    held = age_in_words(float(data["held"]))
    return f"the run ends{why}, and {_amount(event)} {_are(event)} released after {held}"


def _cancelled(event: Event, _: Names) -> str:
    why = event.data.get("why")
    return f"the run does not wait any more{f': it is {why}' if why else ''}"


def _claimed(event: Event, _: Names) -> str:
    return "the daemon takes the run over to launch it"


def _launched(event: Event, _: Names) -> str:
    return "the run is handed to the run launcher"


def _started(event: Event, _: Names) -> str:
    return "the run's work begins"


def _notice(event: Event, names: Names) -> str:
    data = event.data
    for_ = f" for {_name(str(data['for']), names)}" if data.get("for") else ""
    rule = f", by the rule {plain(str(data['rule']))}" if data.get("rule") else ""
    until = f" until {clock(float(data['until']), event.at)}" if data.get("until") else ""
    return f"the run is given notice{until}: it is stopped{for_}{rule}"


def _spared(event: Event, _: Names) -> str:
    return "the notice is withdrawn: the run goes on"


def _renewed(event: Event, _: Names) -> str:
    return "the run may go on borrowing, since no run waits for its GPUs"


_STOPPED_FOR = {
    "bound": "its max_duration is over",
    "preemption": "its notice is over",
}


def _stopping(event: Event, _: Names) -> str:
    why = event.data.get("why")
    return f"the run is being stopped{f': {_STOPPED_FOR.get(why, why)}' if why else ''}"


def _lingering(event: Event, _: Names) -> str:
    data = event.data
    over = data.get("over")
    since = f" since {clock(float(over), event.at, seconds=True)}" if over else ""
    return f"the run is over{since}, but processes of it go on: it still holds its GPUs"


def _proposed(event: Event, _: Names) -> str:
    victims = event.data.get("victims") or ()
    return f"a person is asked whether {counted(len(victims), 'run')} may be stopped for the run"


def _decided(event: Event, _: Names) -> str:
    why, by = event.data.get("why"), event.data.get("by")
    whom = f" by {plain(str(by))}" if by else ""
    return f"the question is {plain(str(event.data['as']))}{whom}{f': {why}' if why else ''}"


def _preempted(event: Event, _: Names) -> str:
    saved = event.data.get("saved")
    lost = ""
    if saved is not None:
        hours = max(0.0, event.at - float(saved)) / 3600 * int(event.data["gpus"]) / ONE_GPU
        lost = f"; {hours:.2g} GPU-hours of work are lost"
    return f"the run was stopped for another, and its work waits again{lost}"


def _continued(event: Event, _: Names) -> str:
    of = plain(str(event.data["of"])[:_SHORT])
    return f"another run, {plain((event.run_id or '')[:_SHORT])}, is made to go on with the work of {of}"


def _kept(event: Event, _: Names) -> str:
    data = event.data
    if data.get("until") is None:
        return f"{plain(str(data['by']))} keeps the run no longer"
    until = clock(float(data["until"]), event.at)
    why = f": {data['why']}" if data.get("why") else ""
    return f"{plain(str(data['by']))} keeps the run from being stopped until {until}{why}"


def _saved(event: Event, _: Names) -> str:
    return f"the run saved its work at {clock(float(event.data['saved']), event.at, seconds=True)}"


def _promised(event: Event, names: Names) -> str:
    victims = event.data.get("victims") or ()
    count = f", once {counted(len(victims), 'run')} {'is' if len(victims) == 1 else 'are'} stopped"
    return f"{_amount(event)} {_are(event)} promised to the run{count if victims else ''}"


def _withdrawn(event: Event, _: Names) -> str:
    why = event.data.get("why")
    return f"the promise to the run ends{f': {why}' if why else ''}"


_WORDS: Mapping[str, Callable[[Event, Names], str]] = {
    "submitted": _submitted,
    "waits": _waits,
    "refused": _refused,
    "reserved": _reserved,
    "unreserved": _unreserved,
    "granted": _granted,
    "ungated": _ungated,
    "recalled": _recalled,
    "requeued": _recalled,
    "released": _released,
    "cancelled": _cancelled,
    "claimed": _claimed,
    "launched": _launched,
    "started": _started,
    "notice": _notice,
    "spared": _spared,
    "renewed": _renewed,
    "stopping": _stopping,
    "lingering": _lingering,
    "proposed": _proposed,
    "decided": _decided,
    "preempted": _preempted,
    "continued": _continued,
    "kept": _kept,
    "saved": _saved,
    "promised": _promised,
    "withdrawn": _withdrawn,
}
