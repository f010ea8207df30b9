"""Whether a run that holds GPUs may be stopped for others: by whom, from when, and with how much notice."""

from __future__ import annotations

from typing import Any

from dagster_gpufair.cli.moment.current import Moment
from dagster_gpufair.cli.output.json_output import iso
from dagster_gpufair.cli.output.text import plain
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.ledger.leases import PREEMPTION, LeaseRecord
from dagster_gpufair.policy.quantities import ONE_GPU, duration_in_words, format_gpus


def may_be_stopped(lease: LeaseRecord, moment: Moment) -> str:
    """In a sentence or two."""
    if lease.state == "notice" or lease.stop_why == PREEMPTION:
        return _under_notice(lease, moment)
    policy, now = moment.policy, moment.now
    tier = policy.tiers.get(lease.tier)
    if "preemption" in moment.paused:
        by = plain(str(moment.paused["preemption"].get("by")))
        return f"It is not stopped for other runs now: {by} has paused preemption."
    if tier is None or tier.preemptible == "never":
        return f"It is not stopped for other runs: tier {plain(lease.tier)} is never preempted."
    rules = policy.stop_rules(lease.pool)
    term = policy.borrowing_rules(lease.team, lease.pool).max_duration
    if rules.mode == "off" and term is None:
        is_on = any(policy.stops_work_in(pool) for pool in policy.pools)
        where = f" of {plain(lease.pool)}" if is_on else ""
        return f"It is not stopped for other runs: preemption{where} is off in the policy."
    borrowed = lease.request_id in moment.snapshot.running.borrowed(lease.team, lease.pool).inside
    if not borrowed and tier.preemptible == "borrowed":
        return "It is not stopped for other runs while it is within the quota."
    from_when = lease.to_lease(now).works_from + rules.min_runtime.total_seconds()
    from_when = max(from_when, lease.kept_until or 0.0)
    after = f", from {clock(from_when, now)} on" if from_when > now else ""
    grace = duration_in_words(rules.grace.total_seconds())
    asked = ", if a person approves" if rules.mode == "approval" else ""
    if rules.mode == "off":
        assert term is not None
        most = duration_in_words(term.total_seconds())
        return f"It may borrow for {most}; then it is stopped for whoever waits, after {grace} of notice."
    who = (
        "runs within their own teams' quotas, or of a higher tier"
        if borrowed
        else "runs of a higher tier"
    )
    if rules.askers != "all":
        who += f", of the tiers {', '.join(rules.askers)} only"
    return f"It may be stopped for {who}{after}, after {grace} of notice{asked}.{_proposed(lease, moment)}"


def notice_json(lease: LeaseRecord) -> dict[str, Any] | None:
    """For programs: until when, for which request and by which rule; None without one."""
    if lease.notice_until is None:
        return None
    return {
        "until": iso(lease.notice_until),
        "for": lease.notice_for,
        "rule": lease.notice_rule,
        "stopping": lease.stop_why == PREEMPTION,
    }


def notice_line(moment: Moment, lease: LeaseRecord) -> str:
    """``notice: 7b10ce4f (vision, 4 GPUs) is stopped at 13:05:00 CET for 3f2a91d0 (reclaim)``; '' without."""
    if lease.notice_until is None:
        return ""
    whom = moment.names.get(lease.notice_for or "", "another run")
    gpus_ = "1 GPU" if lease.gpus == ONE_GPU else f"{format_gpus(lease.gpus)} GPUs"
    until = clock(lease.notice_until, moment.now, seconds=True)
    what = "is being stopped since" if lease.stop_why == PREEMPTION else "is stopped at"
    name = moment.names[lease.request_id]
    return f"notice: {name} ({plain(lease.team)}, {gpus_}) {what} {until} for {whom} ({lease.notice_rule})"


def _proposed(lease: LeaseRecord, moment: Moment) -> str:
    """Which run a person is asked for now whether this one is stopped; '' if for none."""
    for request_id, proposal in moment.proposals.items():
        if any(victim["lease"] == lease.id for victim in proposal.data["victims"]):
            whom = moment.names.get(request_id, request_id)
            return f" A person is asked now whether it is stopped for {whom} (`gpufair approvals`)."
    return ""


def _under_notice(lease: LeaseRecord, moment: Moment) -> str:
    whom = moment.names.get(lease.notice_for or "")
    for_whom = f"for {whom}" if whom else "for another run"
    until = clock(lease.notice_until or moment.now, moment.now, seconds=True)
    if lease.stop_why == PREEMPTION:
        return (
            f"It is being stopped {for_whom} (rule {lease.notice_rule}); its notice was over at {until}. "
            "Its GPUs are free when its processes have ended."
        )
    return (
        f"It is stopped at {until} {for_whom} (rule {lease.notice_rule}), and goes on later in a new run "
        "from the step that is stopped."
    )
