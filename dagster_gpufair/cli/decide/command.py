"""``gpufair decide``: what is decided in a case, and whether it is what the case expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from dagster_gpufair.cli.moment.request_words import account, asked
from dagster_gpufair.cli.output.json_output import iso, json_option, show_json
from dagster_gpufair.cli.output.tables import Column, alarm, headline, show, table, under
from dagster_gpufair.cli.output.text import counted, number, plain, sentence
from dagster_gpufair.cli.output.times import clock
from dagster_gpufair.policy.loading import read_policy
from dagster_gpufair.policy.models import Policy
from dagster_gpufair.policy.problems import PolicyError, Problem
from dagster_gpufair.policy.quantities import format_gpus
from dagster_gpufair.policy.yaml_text import LARGEST_TEXT
from dagster_gpufair.scheduling.cases.case import (
    Case,
    Difference,
    PolicyReader,
    as_data,
    in_line,
    parse_case,
)
from dagster_gpufair.scheduling.explaining.refusal import why_invalid, why_never
from dagster_gpufair.scheduling.model import Plan, Request
from dagster_gpufair.scheduling.plan import plan

UNMET, UNREADABLE = 1, 2
"""Exit codes."""

_ENDINGS = (".yaml", ".yml")
_STARTS = (
    Column("starts"),
    Column("team"),
    Column("tier", drop=1),
    Column("pool"),
    Column("GPUs", right=True),
    Column("class", drop=2),
    Column("points", right=True, drop=3),
    Column("on"),
)
_STOPPED = (
    Column("is stopped"),
    Column("team"),
    Column("tier", drop=1),
    Column("pool"),
    Column("GPUs", right=True),
    Column("rule"),
    Column("for"),
    Column("reserved on", drop=2),
)
_RESERVED = (
    Column("reserves"),
    Column("pool"),
    Column("GPUs", right=True),
    Column("class", drop=1),
    Column("from"),
    Column("on"),
)
_WAITS = (
    Column("waits"),
    Column("team"),
    Column("tier", drop=1),
    Column("pool"),
    Column("asks", right=True),
    Column("class", drop=2),
    Column("points", right=True, drop=3),
    Column("why", wraps=True),
)
_REFUSED = (
    Column("refused"),
    Column("team"),
    Column("tier", drop=1),
    Column("pool"),
    Column("asks", right=True),
    Column("why", wraps=True),
)


@dataclass(frozen=True)
class Refused:
    """A request that would have been refused when it was submitted, whatever is decided of it."""

    request: Request
    code: str
    message: str


@dataclass(frozen=True)
class Decided:
    """A case, its plan, and what of the case the plan does not meet."""

    file: Path
    case: Case
    plan: Plan
    differences: Sequence[Difference]

    @cached_property
    def refused(self) -> Mapping[str, Refused]:
        """What would not have come so far; by id, what starts first and then in the order of the line."""
        starting = [start.request for start in self.plan.starts]
        requests = [*starting, *(request for _, request, _ in in_line(self.plan))]
        tried = ((request, _why_refused(self.case.policy, request)) for request in requests)
        return {request.id: Refused(request, *why) for request, why in tried if why is not None}


def _why_refused(policy: Policy, request: Request) -> tuple[str, str] | None:
    invalid = why_invalid(policy, request)
    return ("invalid_request", invalid) if invalid else why_never(policy, request)


@click.command()
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--check", is_flag=True, help="Compare with what each case expects; exit 1 if it is not met."
)
@json_option
def decide(paths: Sequence[Path], check: bool, as_json: bool) -> None:
    """What is decided in a case: a YAML file with a policy, a moment, and what is expected.

    PATH is such a file, or a folder: then every *.yaml and *.yml in it is a case. What is wrong with a
    file that is no case is printed, and the exit code is 2; the other cases are decided all the same.
    """
    policies: set[Path] = set()
    outcomes = [_outcome(file, check, policies) for path in paths for file in _files(path)]
    # The policy that cases of a folder name may lie in it, and is no case.
    outcomes = [each for each in outcomes if not _is_one_of(policies, each)]
    decided = [outcome for outcome in outcomes if isinstance(outcome, Decided)]
    broken = [outcome for outcome in outcomes if isinstance(outcome, PolicyError)]
    unmet = [each for each in decided if check and each.differences]
    for error in broken:
        for line in error.report().splitlines():
            click.echo(sentence(line), err=True)
    if as_json:
        rows = [_outcome_json(outcome, check) for outcome in outcomes]
        one_file = len(paths) == 1 and not paths[0].is_dir()
        show_json(rows[0] if one_file else {"cases": rows})
    elif check:
        show(*(part for outcome in outcomes for part in _verdict(outcome)))
        show(_count(len(outcomes), len(unmet), len(broken)))
    elif decided:
        show(*(part for each in decided for part in _parts(each)))
        show("--check compares with what a case expects, --json prints it for programs.")
    if broken or unmet:
        raise SystemExit(UNREADABLE if broken else UNMET)


def _files(path: Path) -> Sequence[Path | PolicyError]:
    """The file, or all cases in the folder; or why there are none."""
    if not path.is_dir():
        return [path]
    try:
        found = sorted(file for file in path.rglob("*") if file.suffix in _ENDINGS)
    except OSError as error:
        return [_unreadable(path, f"cannot be read: {error.strerror or error}")]
    return found or [_unreadable(path, "has no case in it: no file that ends in .yaml or .yml")]


def _is_one_of(policies: set[Path], outcome: Decided | PolicyError) -> bool:
    return isinstance(outcome, PolicyError) and Path(outcome.source).resolve() in policies


def _outcome(file: Path | PolicyError, check: bool, policies: set[Path]) -> Decided | PolicyError:
    """``policies`` gains the policy file that the case names, if it names one."""
    if isinstance(file, PolicyError):
        return file
    try:
        case = parse_case(_bytes(file), str(file), _policies_from(file.parent, policies))
    except PolicyError as error:
        return error
    if check and case.expect is None:
        message = (
            "is missing; add what must start, preempt, wait or be in use, or {} to compare nothing"
        )
        return PolicyError([Problem("expect", message)], str(file))
    decision = plan(case.policy, case.state, case.now)
    return Decided(file, case, decision, case.differences(decision))


def _policies_from(folder: Path, read_so_far: set[Path]) -> PolicyReader:
    """Reads policy files by their paths from a folder."""

    def read(name: str) -> Policy:
        policy = read_policy(folder / name)[1]
        read_so_far.add((folder / name).resolve())
        return policy

    return read


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            # One more than allowed: also a device or a pipe without an end is read no further.
            return file.read(LARGEST_TEXT + 1)
    except FileNotFoundError:
        raise _unreadable(path, "no such file; give a case, or a folder of cases") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise _unreadable(path, f"cannot be read: {why}") from None


def _unreadable(path: Path, message: str) -> PolicyError:
    return PolicyError([Problem("", message)], str(path))


def _verdict(outcome: Decided | PolicyError) -> Iterator[RenderableType]:
    """One line for a case, and below it what is not met."""
    if isinstance(outcome, PolicyError):
        yield alarm(f"no case  {sentence(outcome.source)}")
        return
    named = f"{sentence(str(outcome.file))}  {sentence(outcome.case.name)}".rstrip()
    if not outcome.differences:
        yield f"met      {named}"
        return
    yield alarm(f"not met  {named}")
    yield from (f"           {sentence(str(each))}" for each in outcome.differences)


def _count(cases: int, unmet: int, broken: int) -> str:
    parts = [f"{cases - unmet - broken} met"]
    if unmet:
        parts.append(f"{unmet} not met")
    if broken:
        parts.append(f"{broken} cannot be read")
    return f"{counted(cases, 'case')}: {', '.join(parts)}"


def _parts(decided: Decided) -> Iterator[RenderableType]:
    case, decision = decided.case, decided.plan
    title = f"{sentence(case.name)}    " if case.name else ""
    yield headline(f"{title}{sentence(str(decided.file))}, {iso(case.now)}")
    tables = (
        (_STARTS, _starts(decision)),
        (_STOPPED, _stopped(decision)),
        (_RESERVED, _reserved(decision, case.now)),
        (_WAITS, _waits(decided)),
        (_REFUSED, _refused(decided)),
    )
    for columns, rows in tables:
        if rows:
            yield table(columns, rows)
    yield from _also(decision)
    if not any(rows for _, rows in tables):
        yield "No run waits, so none starts."
    yield ""


def _starts(decision: Plan) -> Sequence[Sequence[str]]:
    return [
        (
            plain(start.request.id),
            account(start.request),
            plain(start.request.tier),
            plain(start.pool),
            format_gpus(start.gpus),
            start.class_.label,
            number(start.points.score),
            _on(start.nodes),
        )
        for start in decision.starts
    ]


def _stopped(decision: Plan) -> Sequence[Sequence[str]]:
    return [
        (
            plain(victim.lease.id),
            plain(victim.lease.team),
            plain(victim.lease.tier),
            plain(victim.lease.pool),
            format_gpus(victim.lease.gpus),
            plain(victim.rule) + (", after approval" if each.awaits_approval else ""),
            plain(each.request.id),
            f"{format_gpus(each.promise.gpus)} {_on(each.promise.nodes)}".rstrip(),
        )
        for each in decision.preemptions
        for victim in each.victims
    ]


def _reserved(decision: Plan, now: float) -> Sequence[Sequence[str]]:
    return [
        (
            plain(each.request.id),
            plain(each.pool),
            f"{format_gpus(each.gpus)}{' of its quota' if each.of_quota else ''}",
            each.class_.label,
            "?" if each.at is None else clock(each.at, now),
            _on(each.nodes),
        )
        for each in decision.reservations
    ]


def _waits(decided: Decided) -> Sequence[Sequence[str]]:
    return [
        (
            plain(request.id),
            account(request),
            plain(request.tier),
            plain(group.pool),
            asked(request),
            group.class_.label,
            number(points.score),
            sentence(f"{group.reason}: {group.message}"),
        )
        for group, request, points in in_line(decided.plan)
        if request.id not in decided.refused
    ]


def _refused(decided: Decided) -> Sequence[Sequence[str]]:
    return [
        (
            plain(each.request.id),
            account(each.request),
            plain(each.request.tier),
            plain(",".join(each.request.pools)),
            asked(each.request),
            sentence(f"{each.code}: {each.message}"),
        )
        for each in decided.refused.values()
    ]


def _also(decision: Plan) -> Iterator[RenderableType]:
    """Promises that end, and borrowing times that begin anew."""
    if decision.withdrawn:
        names = ", ".join(plain(id_) for id_ in decision.withdrawn)
        yield under(f"the promise to {names} ends")
    if decision.renewed:
        names = ", ".join(plain(id_) for id_ in decision.renewed)
        yield under(f"{names} may go on borrowing, since no run waits for these GPUs")


def _on(nodes: Mapping[str, int]) -> str:
    """``h1 8, h2 4``; nothing in a pool without nodes."""
    return ", ".join(f"{plain(node)} {format_gpus(gpus)}" for node, gpus in sorted(nodes.items()))


def _outcome_json(outcome: Decided | PolicyError, check: bool) -> dict[str, Any]:
    if isinstance(outcome, PolicyError):
        problems = [
            {"path": problem.path, "message": problem.message} for problem in outcome.problems
        ]
        return {"file": outcome.source, "problems": problems}
    data = {
        "file": str(outcome.file),
        "name": outcome.case.name,
        "now": iso(outcome.case.now),
        **as_data(outcome.plan),
        "refused": [
            {"id": id_, "code": each.code, "message": each.message}
            for id_, each in outcome.refused.items()
        ],
    }
    if check:
        data["met"] = not outcome.differences
        data["differences"] = [each._asdict() for each in outcome.differences]
    return data
