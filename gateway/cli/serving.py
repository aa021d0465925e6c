"""Implements `sluicegate up` and `sluicegate gateway`."""

import contextlib
import logging
import re
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from sluicegate.backends.settings import unknown_variables
from sluicegate.gateway.cli.failures import failing
from sluicegate.gateway.cli.starting import STARTER_CONFIG
from sluicegate.gateway.settings import load_settings, process_environment, variable_warnings
from sluicegate.gateway.supervisor.plan import UpOptions
from sluicegate.gateway.supervisor.serve import run_gateway
from sluicegate.gateway.supervisor.up import run_up
from sluicegate.gateway.telemetry.logs import configure_logging
from sluicegate.wire.cores import usable_cores

FOLDER = click.Path(path_type=Path, file_okay=False)
PORT = click.IntRange(1, 65_535)
_log = logging.getLogger("sluicegate.gateway.supervisor")
_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


def _default_workers() -> int:
    return max(1, usable_cores() - 1)


def _print(line: str) -> None:
    """Print a line. Errors are ignored, because a closed terminal must not end the supervisor."""
    with contextlib.suppress(OSError):
        click.echo(line)


def _regions(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(map(_REGION.fullmatch, names)) or len(set(names)) != len(names):
        raise click.BadParameter("give distinct names, such as `eu,us`")
    return names


def _default_config() -> Path:
    """Return the folder `config`, or the folder that `init` copies if `config` does not exist."""
    own = Path("config")
    if own.is_dir():
        return own
    _print("There is no folder `config`. `sluicegate init` creates one with the present settings.")
    return STARTER_CONFIG


@click.command(short_help="Run everything on this machine.")
@click.option("--port", type=PORT, envvar="SLUICEGATE_PORT", default=8080, show_default=True)
@click.option(
    "--admin-port", type=PORT, envvar="SLUICEGATE_ADMIN_PORT", default=8081, show_default=True
)
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65_535),
    envvar="SLUICEGATE_GRPC_PORT",
    help="Port for gRPC clients (Open Inference Protocol); 0 turns gRPC off."
    "  [default: 8001, if it is free and gRPC is installed]",
)
@click.option("--host", envvar="SLUICEGATE_HOST", default="127.0.0.1", show_default=True)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    help="Gateway processes.  [default: cores - 1, at least 1]",
)
@click.option(
    "--regions",
    callback=_regions,
    default="eu",
    show_default=True,
    help="Names of regions, preferred first. Each gets a backend, or one for each GPU.",
)
@click.option(
    "--data-dir",
    type=FOLDER,
    envvar="SLUICEGATE_DATA_DIR",
    default=".sluicegate",
    show_default=True,
)
@click.option(
    "--config",
    type=FOLDER,
    envvar="SLUICEGATE_CONFIG",
    help="Configuration folder.  [default: config, if it exists; see `sluicegate init`]",
)
@click.option(
    "--models",
    type=FOLDER,
    help="Model repository.  [default: the demo models, built in <data-dir>/models]",
)
@click.option(
    "--demo-models",
    is_flag=True,
    help="Also serve the demo models. A model of --models replaces a demo model of its name.",
)
@click.option(
    "--admin-key",
    envvar="SLUICEGATE_ADMIN_KEY",
    show_envvar=True,
    default="",
    help="Key for operators.  [default: generated, printed, and kept in <data-dir>/admin-key]",
)
@click.option(
    "--demo-key",
    envvar="SLUICEGATE_DEMO_KEY",
    show_envvar=True,
    default="",
    help="API key for tests.  [default: generated, printed, and kept in <data-dir>/demo-key]",
)
def up(
    *,
    port: int,
    admin_port: int,
    grpc_port: int | None,
    host: str,
    workers: int | None,
    regions: tuple[str, ...],
    data_dir: Path,
    config: Path | None,
    models: Path | None,
    demo_models: bool,
    admin_key: str,
    demo_key: str,
) -> None:
    """Run everything on this machine: Valkey, backends, workers, billing and operators' listener.

    You need neither a server nor a configuration. The file <data-dir>/processes.json lists the
    running processes and their addresses.
    """
    if port == admin_port:
        raise click.UsageError("`--port` and `--admin-port` must differ")
    if grpc_port in (port, admin_port):
        raise click.UsageError("`--grpc-port` must differ from `--port` and `--admin-port`")
    environment = process_environment()
    for problem in (*variable_warnings(environment), *unknown_variables(environment)):
        click.echo(f"Warning: {problem}", err=True)
    with failing():
        settings = msgspec.structs.replace(
            load_settings(),
            port=port,
            admin_port=admin_port,
            host=host,
            data_dir=data_dir,
            config=config or _default_config(),
        )
        options = UpOptions(
            workers=workers or _default_workers(),
            regions=regions,
            models=models,
            demo_models=demo_models,
            admin_key=admin_key,
            demo_key=demo_key,
            grpc_port=grpc_port,
        )
        run_up(settings, options, say=_print)


@click.command(short_help="Run the gateway of one machine, in production.")
@click.option("--workers", type=click.IntRange(1, 256), help="[default: cores - 1, at least 1]")
@click.option("--admin/--no-admin", default=True, help="Also run the operators' listener.")
def gateway(*, workers: int | None, admin: bool) -> None:
    """Run a machine's gateway in production: workers, event shipper and operators' listener.

    All other settings are in the environment: SLUICEGATE_DATA_DIR, SLUICEGATE_CONFIG,
    SLUICEGATE_HOST, SLUICEGATE_PORT, SLUICEGATE_ADMIN_HOST, SLUICEGATE_ADMIN_PORT,
    SLUICEGATE_ADMIN_KEY, SLUICEGATE_CACHE_URL, SLUICEGATE_STATE_URL, SLUICEGATE_LEDGER_URL,
    SLUICEGATE_SECRET, SLUICEGATE_BACKEND_TOKEN.
    All processes log JSON lines to standard output. With SLUICEGATE_LOGS=files, each process logs
    to a file of its own.
    """
    with failing():
        settings = load_settings()
        say: Callable[[str], None] = _print
        if settings.logs == "stdout":
            configure_logging(
                settings.log_level, process="supervisor", is_text=settings.log_format == "text"
            )
            say = _log.info
        for problem in variable_warnings(process_environment()):
            say(problem)
        run_gateway(settings, workers=workers or _default_workers(), admin=admin, say=say)
