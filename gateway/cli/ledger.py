"""Implements `sluicegate ledger`: backs up the SQLite ledger."""

from pathlib import Path

import click

from gateway.cli.failures import Failure, failing
from gateway.errors import DependencyUnavailable
from gateway.settings import load_settings
from gateway.supervisor.errors import ExitCode


@click.group()
def ledger() -> None:
    """Back up the ledger."""


@ledger.command()
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
def backup(target: Path) -> None:
    """Write a copy of the SQLite ledger to TARGET, while it is used.

    The environment names the ledger: SLUICEGATE_DATA_DIR or SLUICEGATE_LEDGER_URL.
    """
    from gateway.ledger.backup import back_up  # noqa: PLC0415 - other commands do without SQL

    with failing():
        try:
            back_up(load_settings().ledger, target)
        except DependencyUnavailable as error:
            raise Failure(error.detail, ExitCode.FAILED) from error
    click.echo(f"`{target}` has the ledger ({target.stat().st_size} bytes)")
