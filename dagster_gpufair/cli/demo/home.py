"""Where the demo runs: the example files of the repository, a home of its own, and a free port."""

from __future__ import annotations

import errno
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import yaml

import dagster_gpufair
from dagster_gpufair.cli.demo.interrupts import Interrupted
from dagster_gpufair.cli.output.text import sentence
from dagster_gpufair.policy.loading import read_policy
from dagster_gpufair.policy.problems import PolicyError

HOST = "127.0.0.1"
_PORTS_TRIED = 100
_LONGEST_SOCKET_FOLDER = 80
"""Bytes: the path of a Unix socket is limited to about a hundred."""


@dataclass(frozen=True)
class Example:
    """The example that comes with the package: code locations by name, and their policy."""

    root: Path
    modules: Mapping[str, str]
    policy: Path


@dataclass
class Home:
    """The demo's own ``DAGSTER_HOME``. A temporary one is removed at the end, unless it is kept."""

    folder: Path
    temporary: bool
    keep: bool = False

    @property
    def workspace(self) -> Path:
        """The workspace file that names the running code servers."""
        return self.folder / "workspace.yaml"

    @property
    def policy(self) -> Path:
        """The policy of the demo: a copy of the example's, to be changed by who looks on."""
        return self.folder / "gpufair.yaml"

    @property
    def logs(self) -> Path:
        """Where the servers of the demo write what they say; ``logs`` is Dagster's own."""
        return self.folder / "server_logs"


def find_example() -> Example:
    """The example files: in the installed package, or beside it in a checkout of the repository.

    Raises:
        click.ClickException: if Dagster's web server or the example is not there, or the policy is not
            sound.
    """
    if find_spec("dagster_webserver") is None:
        raise click.ClickException(
            "The demo shows Dagster's UI, and dagster-webserver is not installed. Install it with: "
            "pip install 'dagster-gpufair[demo]'"
        )
    package = Path(dagster_gpufair.__file__).resolve().parent
    installed = package / "example"
    root = installed if installed.is_dir() else package.parent
    workspace, policy = root / "workspace.yaml", root / "definitions" / "gpufair.yaml"
    missing = [path.relative_to(root) for path in (workspace, policy) if not path.is_file()]
    if missing:
        raise click.ClickException(
            f"The demo runs an example, and {' and '.join(map(str, missing))} cannot be found in {root}. "
            "Install dagster-gpufair anew."
        )
    try:
        read_policy(policy)
        modules = _modules(yaml.safe_load(workspace.read_text(encoding="utf-8")))
    except PolicyError as error:
        raise click.ClickException(error.report("so there is nothing to show")) from error
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise click.ClickException(
            f"{workspace} does not name the demo's code locations: {sentence(str(error))}"
        ) from error
    return Example(root, modules, policy)


def _modules(workspace: Any) -> dict[str, str]:
    entries = [entry["python_module"] for entry in workspace["load_from"]]
    return {entry["location_name"]: entry["module_name"] for entry in entries}


@contextmanager
def prepared_home(given: Path | None, example: Example) -> Iterator[Home]:
    """A new home with its ``dagster.yaml``; a temporary one goes when all went well.

    Raises:
        click.ClickException: if the folder given has something in it already, or cannot be used.
    """
    try:
        home = _new_home(given)
        home.logs.mkdir()
        shutil.copyfile(example.policy, home.policy)
        (home.folder / "dagster.yaml").write_text(_dagster_yaml(home), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(
            f"The demo cannot make its home: {sentence(str(error))}. Choose a folder with --home."
        ) from error
    try:
        yield home
    except Interrupted:
        raise
    except BaseException:
        home.keep = True
        click.echo(f"What the servers said is kept in {home.logs}", err=True)
        raise
    finally:
        if home.temporary and not home.keep:
            shutil.rmtree(home.folder, ignore_errors=True)


def _new_home(given: Path | None) -> Home:
    if given is None:
        return Home(Path(tempfile.mkdtemp(prefix="gpufair-demo-")).resolve(), temporary=True)
    folder = given.expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise click.ClickException(
            f"{folder} is not empty, and the demo keeps to a folder of its own. "
            "Choose a new one with --home, or leave it out for a temporary one."
        )
    return Home(folder.resolve(), temporary=False)


def _dagster_yaml(home: Home) -> str:
    settings = {
        "run_coordinator": {
            "module": "dagster_gpufair",
            "class": "GpuFairRunCoordinator",
            "config": {
                "policy": str(home.policy),
                # The declared pools are the limit, as on a cluster.
                "max_concurrent_runs": -1,
                "dequeue_interval_seconds": 1,
            },
        },
        "telemetry": {"enabled": False},
    }
    return yaml.safe_dump(settings, sort_keys=False)


def write_workspace(home: Home, sockets: Mapping[str, Path]) -> None:
    """Name the running code servers, so that web server and daemon share them."""
    servers = [
        {"grpc_server": {"location_name": name, "socket": str(path)}}
        for name, path in sockets.items()
    ]
    text = yaml.safe_dump({"load_from": servers}, sort_keys=False)
    home.workspace.write_text(text, encoding="utf-8")


@contextmanager
def socket_folder(home: Home) -> Iterator[Path]:
    """A folder for Unix sockets: in the home, or where paths are shorter."""
    folder = home.folder / "sockets"
    if len(bytes(folder)) <= _LONGEST_SOCKET_FOLDER:
        folder.mkdir()
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="gpufair-", dir=_short_temporary_folder()) as short:
        yield Path(short)


def _short_temporary_folder() -> str | None:
    usual = tempfile.gettempdir()
    return None if len(usual.encode()) < _LONGEST_SOCKET_FOLDER // 2 else "/tmp"


def require_free(port: int) -> None:
    """Make sure that a web server can listen there.

    Raises:
        click.ClickException: if it cannot, with a port that is free.
    """
    problem = _taken(port)
    if problem is None:
        return
    others = range(max(port + 1, 1024), min(port + _PORTS_TRIED, 65536))
    free = next((other for other in others if _taken(other) is None), None)
    instead = (
        f"choose another: gpufair demo --port {free}" if free else "choose another with --port"
    )
    raise click.ClickException(f"{problem} Stop that, or {instead}")


def _taken(port: int) -> str | None:
    with socket.socket() as caller:
        caller.settimeout(1)
        if caller.connect_ex((HOST, port)) == 0:
            return f"Port {port} of {HOST} is taken: another program serves there."
    with socket.socket() as listener:
        # As servers do, so that a connection of one that has just ended is no hindrance.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            if error.errno == errno.EACCES:
                return f"Port {port} is reserved for the system: this user may not serve there."
            return f"Port {port} of {HOST} is taken: {error.strerror}."
    return None
