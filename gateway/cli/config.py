"""Implements `sluicegate config`: checks, shows and reloads the configuration document."""

from pathlib import Path
from typing import Any

import click
import yaml

from sluicegate.gateway.cli.admin_client import (
    JSON,
    AdminClient,
    admin_options,
    print_change,
    print_json,
)
from sluicegate.gateway.cli.differences import print_difference, print_recounts
from sluicegate.gateway.cli.failures import Failure
from sluicegate.gateway.config.load import check_memory, explain, parse_sources
from sluicegate.gateway.config.sources import read_folder
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.http.edge import check_listeners
from sluicegate.gateway.operations.configuration import get_config, reload_config, replace_config
from sluicegate.gateway.settings import load_settings
from sluicegate.gateway.supervisor.errors import ExitCode
from sluicegate.gateway.upstream.tls import client_tls


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default="config")
@JSON
def check(folder: Path, *, as_json: bool) -> None:
    """Check a folder of *.yaml files without a running gateway. An error names its file and line.

    The command also checks the certificates and the memory limit that the environment sets.
    """
    try:
        parsed, settings = parse_sources(read_folder(folder)), load_settings()
        check_memory(parsed, settings.memory_limit_bytes)
        client_tls(settings).renew()  # raises if a certificate or key cannot be used
        check_listeners(settings)
    except ConfigurationError as error:
        if not as_json:
            raise Failure(explain(error), ExitCode.CONFIGURATION) from error
        place = {"file": error.file, "line": error.line, "field": error.field}
        print_json({"valid": False, **place, "detail": error.detail})
        raise SystemExit(ExitCode.CONFIGURATION) from error
    if as_json:
        print_json({"valid": True, "digest": parsed.digest})
    else:
        click.echo(f"`{folder}` is valid (digest {parsed.digest})")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default="config")
@admin_options
def diff(*, folder: Path, client: AdminClient, as_json: bool) -> None:
    """Show what publishing a folder of *.yaml files would change, without publishing it.

    The gateway checks the folder as it does before a publication. It also counts what changed
    guards would have decided about sampled texts.
    """
    try:
        values = parse_sources(read_folder(folder)).tree.values
    except ConfigurationError as error:
        raise Failure(explain(error), ExitCode.CONFIGURATION) from error
    answer = client.carry_out(replace_config, query={"dry_run": "true"}, body=values)
    if as_json:
        print_json(answer)
    else:
        print_difference(answer["difference"])
        print_recounts(answer.get("guards", {}))  # a listener of an earlier version sends none


@click.command()
@admin_options
def show(*, client: AdminClient, as_json: bool) -> None:
    """Show the active configuration, its generation, and the workers that have applied it."""
    answer = client.carry_out(get_config)
    if as_json:
        print_json(answer)
        return
    click.echo(f"# generation {answer['generation']}, digest {answer['digest']}")
    for name, outcome in answer["workers"].items():
        click.echo(f"# {name}: {outcome}")
    click.echo(yaml.safe_dump(answer["document"], sort_keys=False), nl=False)


@click.command()
@admin_options
def reload(*, client: AdminClient, as_json: bool) -> None:
    """Publish the gateway's configuration folder. If the folder is invalid, nothing changes.

    Exit with 1 if a worker has not applied the document.
    """
    answer = client.carry_out(reload_config)
    same = "" if answer["changed"] else "; nothing has changed"
    head = f"generation {answer['generation']}, digest {answer['digest']}{same}"
    print_change(answer, as_json=as_json, head=head, more=_show_notice)


def _show_notice(answer: Any) -> None:
    if notice := answer.get("notice"):  # a listener of an earlier version sends none
        click.echo(notice, err=True)


COMMANDS = (check, diff, show, reload)
