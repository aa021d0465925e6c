"""Implements the commands of `sluicegate keys` that make several calls."""

from itertools import islice
from typing import Any, BinaryIO

import click
import msgspec

from sluicegate.gateway.cli.admin_client import AdminClient, admin_options, print_json
from sluicegate.gateway.cli.failures import ADMIN_REFUSED, Failure, UnconfirmedFailure
from sluicegate.gateway.errors import Conflict
from sluicegate.gateway.operations.accounts import create_key, create_keys, create_tenant
from sluicegate.gateway.supervisor.errors import ExitCode

_AT_ONCE = 1000
_UNKNOWN = (
    "The keys of earlier lines are created, but it is unknown whether the keys of the lines {first}"
    " to {last} are created, too. If `sluicegate keys list` shows them, revoke them, because their"
    " secrets are lost. Then import the file again from line {first} on"
)


@click.command()
@click.argument("tenant")
@click.option("--name", default="", help="What the key is for.")
@click.option(
    "--model", "models", multiple=True, help="A model that the key may use.  [default: all]"
)
@click.option(
    "--origin", "origins", multiple=True, help="Origin of web pages that may use the key."
)
@click.option(
    "--route", "routes", multiple=True, help="A path the key may be used for.  [default: all]"
)
@click.option("--new-tenant", is_flag=True, help="Also create the tenant.")
@admin_options
def create(
    *,
    tenant: str,
    name: str,
    models: tuple[str, ...],
    origins: tuple[str, ...],
    routes: tuple[str, ...],
    new_tenant: bool,
    client: AdminClient,
    as_json: bool,
) -> None:
    """Create a key of TENANT, and print its secret. The secret is not shown again."""
    if new_tenant:
        answer = client.carry_out(create_tenant, body={"id": tenant}, accept_code=Conflict.code)
        if answer.get("code") == Conflict.code:
            raise Failure(f"{answer['detail']}: leave out `--new-tenant`", ADMIN_REFUSED)
    body: dict[str, object] = {"tenant": tenant, "name": name, "models": list(models) or None}
    # Empty fields are left out, because a listener of the previous version does not know these
    # fields.
    body |= {"origins": origins} if origins else {}
    body |= {"routes": routes} if routes else {}
    try:
        answer = client.carry_out(create_key, body=body)
    except Failure as failure:
        if not new_tenant:
            raise
        there = f"The tenant `{tenant}` is created: repeat the command without `--new-tenant`"
        raise Failure(f"{failure.message}. {there}", failure.exit_code) from failure
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["key"])
        click.echo(f"{answer['id']} of {tenant}; the secret is not shown again", err=True)


@click.command(name="import")
@click.argument("file", type=click.File("rb"))
@click.option("--new-tenants", is_flag=True, help="Create tenants that do not exist.")
@admin_options
def import_keys(*, file: BinaryIO, new_tenants: bool, client: AdminClient, as_json: bool) -> None:
    """Create the keys that FILE describes. It has a line of JSON for each key.

    A line looks like {"tenant": "acme", "name": "app"}. The command creates 1,000 keys at a time.
    It prints a line of JSON for each key, with its secret. The secrets are not shown again. If FILE
    is `-`, the command reads standard input.
    """
    del as_json  # the output is always JSON
    done = 0
    numbered = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    while lines := list(islice(numbered, _AT_ONCE)):
        try:
            wanted = [_key_of(line, number) for number, line in lines]
            body = {"keys": wanted, "new_tenants": new_tenants}
            answer = client.carry_out(create_keys, body=body)
        except Failure as failure:
            there = (
                f"The keys of the first {done} lines are created" if done else "No key is created"
            )
            if isinstance(failure, UnconfirmedFailure):
                there = _UNKNOWN.format(first=lines[0][0], last=lines[-1][0])
            raise Failure(f"{failure.message}. {there}", failure.exit_code) from failure
        for key in answer["keys"]:
            click.echo(msgspec.json.encode(key))
        done = lines[-1][0]


def _key_of(line: bytes, number: int) -> msgspec.Raw:
    try:
        msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Failure(f"line {number} is not a JSON object: {error}", ExitCode.FAILED) from error
    return msgspec.Raw(line)


COMMANDS = (create, import_keys)
