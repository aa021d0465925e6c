"""Implements `sluicegate keys` and `sluicegate usage`. They call the operators' listener."""

from datetime import UTC, datetime
from itertools import islice
from typing import Any, BinaryIO

import click
import msgspec

from gateway.cli.admin_client import AdminClient, admin_options, print_json, quoted
from gateway.cli.failures import ADMIN_REFUSED, Failure, UnconfirmedFailure
from gateway.cli.key_states import key_state
from gateway.cli.tables import print_table
from gateway.errors import Conflict
from gateway.ledger.types import GroupBy
from gateway.supervisor.errors import ExitCode

_AT_ONCE = 1000
_GROUPS = [group.value for group in GroupBy]
_UNKNOWN = (
    "The keys of earlier lines are created, but it is unknown whether the keys of the lines {first}"
    " to {last} are created, too. If `sluicegate keys list` shows them, revoke them, because their"
    " secrets are lost. Then import the file again from line {first} on"
)


@click.group()
def keys() -> None:
    """Create, list and revoke API keys."""


@keys.command()
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
        answer = client.request(
            "POST", "/admin/tenants", body={"id": tenant}, accept_code=Conflict.code
        )
        if answer.get("code") == Conflict.code:
            raise Failure(f"{answer['detail']}: leave out `--new-tenant`", ADMIN_REFUSED)
    body: dict[str, object] = {"tenant": tenant, "name": name, "models": list(models) or None}
    # Empty fields are left out, because a listener of the previous version does not know these
    # fields.
    body |= {"origins": origins} if origins else {}
    body |= {"routes": routes} if routes else {}
    try:
        answer = client.request("POST", "/admin/keys", body=body)
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


@keys.command(name="import")
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
            answer = client.request("POST", "/admin/keys/bulk", body=body)
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


@keys.command(name="list")
@click.option("--tenant", default="", help="The tenant whose keys are listed.  [default: all]")
@admin_options
def list_keys(*, tenant: str, client: AdminClient, as_json: bool) -> None:
    """List keys, without their secrets."""
    query = {"tenant": tenant} if tenant else {}
    answer = client.request("GET", "/admin/keys", query=query)
    if as_json:
        print_json(answer)
        return
    now = datetime.now(UTC)
    print_table(
        ("id", "tenant", "state", "created", "name"),
        (
            (key["id"], key["tenant"], key_state(key, now), key["created"], key["name"])
            for key in answer["keys"]
        ),
    )


@keys.command()
@click.argument("key_id")
@admin_options
def revoke(*, key_id: str, client: AdminClient, as_json: bool) -> None:
    """Revoke a key for ever. Workers refuse it within a second."""
    answer = client.request("DELETE", f"/admin/keys/{quoted(key_id)}")
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{key_id} is revoked")


@click.command()
@click.option("--tenant", default="", help="The tenant whose usage is shown.  [default: all]")
@click.option("--from", "since", default="", help="First date or time, such as 2026-11-01.")
@click.option("--to", "until", default="", help="End date or time, exclusive.")
@click.option(
    "--group-by",
    type=click.Choice(_GROUPS),
    multiple=True,
    default=("tenant", "model"),
)
@admin_options
def usage(
    *,
    tenant: str,
    since: str,
    until: str,
    group_by: tuple[str, ...],
    client: AdminClient,
    as_json: bool,
) -> None:
    """Show usage and its cost."""
    query = {"tenant": tenant, "from": since, "to": until, "group_by": ",".join(group_by)}
    answer = client.request("GET", "/admin/usage", query={k: v for k, v in query.items() if v})
    if as_json:
        print_json(answer)
        return
    columns = (*group_by, "requests", "items", "cost", "currency")
    print_table(columns, ([row.get(name, "") for name in columns] for row in answer["rows"]))
