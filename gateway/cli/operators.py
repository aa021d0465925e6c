"""Implements `sluicegate operators`. It calls the operators' listener."""

from datetime import UTC, datetime
from typing import Any

import click

from gateway.cli.admin_client import AdminClient, admin_options, print_json, quoted
from gateway.cli.key_states import key_state
from gateway.cli.tables import print_table

_ROLES = ("metrics", "viewer", "billing", "operator", "admin")
_role = click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    type=click.Choice(_ROLES),
    help="A role of the operator; repeat the option for several roles.",
)


@click.group()
def operators() -> None:
    """Create, list, rotate and revoke operators. Each operator has a key and roles."""


@operators.command()
@click.argument("name")
@_role
@click.option("--expires", default="", help="When the key expires, as 2027-01-01T00:00:00Z.")
@admin_options
def create(
    *, name: str, roles: tuple[str, ...], expires: str, client: AdminClient, as_json: bool
) -> None:
    """Create the operator NAME, and print the new key. The key is not shown again."""
    body: dict[str, object] = {"name": name, "roles": roles}
    body |= {"expires": expires} if expires else {}
    answer = client.request("POST", "/admin/operators", body=body)
    _print_key(answer, as_json=as_json)


@operators.command(name="list")
@admin_options
def list_operators(*, client: AdminClient, as_json: bool) -> None:
    """List operators and their roles, without their keys."""
    answer = client.request("GET", "/admin/operators")
    if as_json:
        print_json(answer)
        return
    now = datetime.now(UTC)
    print_table(
        ("name", "state", "created", "roles"),
        (
            (one["name"], key_state(one, now), one["created"], ",".join(one["roles"]))
            for one in answer["operators"]
        ),
    )


@operators.command(name="roles")
@click.argument("name")
@_role
@admin_options
def set_roles(*, name: str, roles: tuple[str, ...], client: AdminClient, as_json: bool) -> None:
    """Replace the roles of the operator NAME."""
    answer = client.request("PUT", f"{_path(name)}/roles", body={"roles": roles})
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{name} has the roles {', '.join(answer['roles'])}")


@operators.command()
@click.argument("name")
@click.option(
    "--former-valid-for",
    "keep",
    type=float,
    default=3600.0,
    show_default=True,
    help="Seconds for which the former key stays valid; 0 ends it at once.",
)
@admin_options
def rotate(*, name: str, keep: float, client: AdminClient, as_json: bool) -> None:
    """Give the operator NAME a new key, and print the key. The key is not shown again."""
    answer = client.request("POST", f"{_path(name)}/rotate", body={"former_valid_for": keep})
    _print_key(answer, as_json=as_json)


@operators.command()
@click.argument("name")
@admin_options
def revoke(*, name: str, client: AdminClient, as_json: bool) -> None:
    """Revoke the operator NAME for ever. Within a second, listeners refuse the operator's key."""
    answer = client.request("DELETE", _path(name))
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{name} is revoked")


@operators.command()
@admin_options
def whoami(*, client: AdminClient, as_json: bool) -> None:
    """Show the name and the roles of the operator whose key is used."""
    answer = client.request("GET", "/admin/whoami")
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{answer['name']}\t{','.join(answer['roles'])}")


def _print_key(answer: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["key"])
        roles = ", ".join(answer["roles"])
        click.echo(f"key of {answer['name']} ({roles}); it is not shown again", err=True)


def _path(name: str) -> str:
    return f"/admin/operators/{quoted(name)}"
