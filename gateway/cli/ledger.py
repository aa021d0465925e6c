"""Implements `sluicegate ledger`: creates the ledger, and backs up a SQLite ledger."""

from pathlib import Path

import click

from sluicegate.gateway.cli.failures import Failure, failing
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.settings import load_settings
from sluicegate.gateway.supervisor.errors import ExitCode


@click.group()
def ledger() -> None:
    """Create the ledger, or back it up."""


@ledger.command()
@click.option(
    "--anew",
    is_flag=True,
    help="Create a ledger even if the deployment had one; its keys and usage are lost.",
)
def init(*, anew: bool) -> None:
    """Create the ledger of a new deployment, or migrate the tables of an older ledger.

    Run this once, before the first gateway of a deployment starts. No other process creates a
    ledger. The command waits up to a minute for the database and for the Redis that holds shared
    state. If this Redis has been used before, but the ledger is empty, the ledger was lost. The
    command then fails, so that you can restore a backup.

    SLUICEGATE_DATA_DIR or SLUICEGATE_LEDGER_URL names the ledger. SLUICEGATE_STATE_URL names the
    Redis.
    """
    from sluicegate.gateway.runtime.first_start import create_ledger  # noqa: PLC0415 - other commands need no SQL

    with failing():
        try:
            is_new = create_ledger(load_settings(), anew=anew)
        except DependencyUnavailable as error:
            raise Failure(error.detail, ExitCode.FAILED) from error
    click.echo("the ledger was created" if is_new else "the ledger exists and is up to date")


@ledger.command()
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
def backup(target: Path) -> None:
    """Write a copy of the SQLite ledger to a new file TARGET. The ledger may be in use.

    SLUICEGATE_DATA_DIR or SLUICEGATE_LEDGER_URL names the ledger.
    """
    from sluicegate.gateway.ledger.backup import back_up  # noqa: PLC0415 - other commands need no SQL

    with failing():
        try:
            back_up(load_settings().ledger, target)
        except DependencyUnavailable as error:
            raise Failure(error.detail, ExitCode.FAILED) from error
    click.echo(f"the ledger is backed up to `{target}` ({target.stat().st_size} bytes)")
