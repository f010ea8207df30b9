"""Which Dagster instance a command is about: found the way Dagster's own commands find theirs.

``--instance`` names it; else ``DAGSTER_HOME`` does, also from a ``.env`` file here. Without both,
``dagster dev`` keeps a temporary home in the folder that it runs in, configured by the ``dagster.yaml``
beside it: that is the one a person in that folder means. Dagster is imported only when it is needed,
since it takes a second: most commands read the ledger alone (`storage_settings`), and need to know
no more of the run coordinator than `coordinator_settings` says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from sqlalchemy import URL

from dagster_gpufair.cli.instance.coordinator_settings import followed_policy_file
from dagster_gpufair.cli.instance.option import DEV_HOME
from dagster_gpufair.cli.instance.storage_settings import ledger_by_settings
from dagster_gpufair.cli.output.text import sentence
from dagster_gpufair.ledger import status
from dagster_gpufair.ledger.connect import Ledger, LedgerError, ledger_of
from dagster_gpufair.ledger.status import DAEMON
from dagster_gpufair.ledger.writer import TURN_LASTS
from dagster_gpufair.policy.loading import read_policy
from dagster_gpufair.policy.problems import PolicyError

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from dagster_gpufair.gate.submission.coordinator import GpuFairRunCoordinator


class Home(NamedTuple):
    """Where an instance keeps its files, and where its ``dagster.yaml`` is."""

    folder: Path
    config: Path


class OpenLedger:
    """The ledger of an instance, and the instance itself for what only Dagster knows.

    The instance is opened when it is first asked for. ``url`` is where the ledger is, and ``followed`` the
    policy file, as far as both are known without it.
    """

    def __init__(
        self,
        open_it: Callable[[], DagsterInstance],
        url: URL | None = None,
        followed: Path | None = None,
    ):
        self._open_it = open_it
        self._url = url
        self._followed = followed

    @cached_property
    def instance(self) -> DagsterInstance:
        """The Dagster instance.

        Raises:
            click.ClickException: if it cannot be opened.
        """
        return self._open_it()

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger.

        Raises:
            click.ClickException: if the instance has to be opened to find it, and cannot be.
            LedgerError: if the instance can have none.
        """
        return Ledger(self._url) if self._url is not None else ledger_of(self.instance)

    @cached_property
    def policy_file(self) -> Path | None:
        """The policy file that the instance follows; None if its run coordinator is not ours.

        Raises:
            click.ClickException: if the instance or its run coordinator cannot be loaded.
        """
        if self._followed is not None:
            return self._followed
        coordinator = coordinator_of(self.instance)
        return None if coordinator is None else coordinator.policy_watch.path


@contextmanager
def opened_ledger(given: Path | None) -> Iterator[OpenLedger]:
    """The ledger of the instance that is meant, for as long as it is needed.

    Raises:
        click.ClickException: if there is none, or it cannot be opened.
    """
    if Path(".env").exists():
        # What it sets may say which instance is meant, and how its database is reached.
        with opened(given) as instance:
            yield OpenLedger(lambda: instance)
        return
    home = find_home(given)
    with ExitStack() as stack:
        url = ledger_by_settings(home.folder, home.config)
        # Dagster has to be asked about a storage that is not recognised, and then about all.
        followed = None if url is None else followed_policy_file(home.folder, home.config)
        found = OpenLedger(lambda: stack.enter_context(_open(home)), url, followed)
        if url is not None:
            stack.callback(found.ledger.dispose)
        yield found


@contextmanager
def opened(given: Path | None) -> Iterator[DagsterInstance]:
    """The instance that is meant, for as long as it is needed.

    Raises:
        click.ClickException: if there is none, or it cannot be opened.
    """
    from dagster_gpufair.cli.instance.dagster_internals import env_file

    with env_file(), _open(find_home(given)) as instance:
        yield instance


def find_home(given: Path | None) -> Home:
    """Where the instance is: as given, by ``DAGSTER_HOME``, or of the one `dagster dev` here."""
    if given is not None:
        return _at(given.absolute())
    set_to = os.environ.get("DAGSTER_HOME")
    if set_to:
        folder = Path(set_to).expanduser()
        if not folder.is_absolute() or not folder.is_dir():
            raise click.ClickException(
                f"DAGSTER_HOME is {sentence(set_to)}, which is not the absolute path of a folder."
            )
        return Home(folder, folder)
    here = Path.cwd()
    homes = _dev_homes(here)
    if not homes:
        raise click.ClickException(_none_here(here))
    home = _the_one_alive(homes)
    click.echo(f"Using the instance of `dagster dev` in this folder ({home.name}).", err=True)
    return Home(home, here)


def coordinator_of(instance: DagsterInstance) -> GpuFairRunCoordinator | None:
    """The instance's run coordinator, if it is ours.

    Raises:
        click.ClickException: if it cannot be loaded.
    """
    from dagster_gpufair.gate.submission.coordinator import GpuFairRunCoordinator

    try:
        coordinator = instance.run_coordinator
    except Exception as error:
        # Whatever the class that dagster.yaml names may raise.
        from dagster_gpufair.cli.instance.config_errors import in_short

        file = Path(instance.root_directory) / "dagster.yaml"
        if not file.exists():
            # `dagster dev` keeps its files in a folder of its own beside it.
            file = file.parent.parent / file.name
        raise click.ClickException(
            "The instance's run coordinator cannot be loaded: "
            f"{in_short(error, file, 'run_coordinator.config')}"
        ) from error
    return coordinator if isinstance(coordinator, GpuFairRunCoordinator) else None


def no_policy(instance: DagsterInstance) -> click.ClickException:
    """Why an instance has no GPU policy in force, and what to do."""
    coordinator = coordinator_of(instance)
    if coordinator is None:
        return click.ClickException(
            "This Dagster instance has no GPU policy, and its run coordinator is "
            f"{type(instance.run_coordinator).__name__}. `gpufair init` writes a policy and says "
            "what belongs in dagster.yaml."
        )
    path = coordinator.policy_watch.path
    try:
        read_policy(path)
    except PolicyError as error:
        return click.ClickException(error.report("so no GPU policy is in force"))
    return click.ClickException(
        f"No GPU policy is in force yet: {path} is adopted on the daemon's first pass, or when a GPU "
        "run is submitted. Start `dagster dev` or `dagster-daemon run`."
    )


def _at(folder: Path) -> Home:
    if folder.name.startswith(DEV_HOME):
        return Home(folder, folder.parent)
    homes = _dev_homes(folder)
    # A folder in which Dagster keeps its runs is a home itself.
    if homes and not (folder / "history").exists():
        return Home(_the_one_alive(homes), folder)
    return Home(folder, folder)


@contextmanager
def _open(home: Home) -> Iterator[DagsterInstance]:
    from dagster_gpufair.cli.instance.dagster_internals import open_instance

    try:
        # Whatever the classes that a dagster.yaml names may raise.
        instance = open_instance(home.folder, home.config)
    except Exception as error:
        from dagster_gpufair.cli.instance.config_errors import in_short

        raise click.ClickException(
            f"The Dagster instance cannot be opened: {in_short(error, home.config / 'dagster.yaml')}"
        ) from error
    with instance:
        yield instance


def _dev_homes(folder: Path) -> list[Path]:
    """The temporary homes in a folder, oldest first. One whose process was killed stays behind."""
    homes = [path for path in folder.glob(f"{DEV_HOME}*") if path.is_dir()]
    return sorted(homes, key=lambda path: path.stat().st_mtime)


def _the_one_alive(homes: Sequence[Path]) -> Path:
    """The only one; among several, the only ledger that a queue daemon follows now."""
    if len(homes) == 1:
        return homes[0]
    # Where they share a database, it does not matter which of them is opened.
    alive = {ledger: home for home in homes if (ledger := _followed_ledger(home)) is not None}
    if len(alive) == 1:
        return next(iter(alive.values()))
    named = "\n".join(f"  {home}" for home in homes)
    which = "more than one runs" if alive else "no queue daemon follows any of them now"
    raise click.ClickException(
        f"There are {len(homes)} homes of `dagster dev` here, and {which}; say which one with "
        f"--instance:\n{named}"
    )


def _followed_ledger(home: Path) -> str | None:
    """The database of a home's ledger, if a queue daemon passed there a moment ago."""
    url = ledger_by_settings(home, home.parent)
    try:
        if url is None:
            with _open(Home(home, home.parent)) as instance:
                return _if_followed(ledger_of(instance))
        ledger = Ledger(url)
        try:
            return _if_followed(ledger)
        finally:
            ledger.dispose()
    except (LedgerError, click.ClickException):
        return None


def _if_followed(ledger: Ledger) -> str | None:
    url = ledger.url
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        return None
    with ledger.reading() as session:
        last = status.get(session, DAEMON)
    return str(url) if last and time.time() - last["at"] < TURN_LASTS else None


def _none_here(here: Path) -> str:
    message = (
        "There is no Dagster instance to ask: DAGSTER_HOME is not set, and no `dagster dev` runs in "
        "this folder. Start `dagster dev` here, or set DAGSTER_HOME, or give --instance DIR."
    )
    if (here / "dagster.yaml").exists():
        message += " `--instance .` uses the dagster.yaml of this folder."
    return message
