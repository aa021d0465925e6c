"""Implements `sluicegate regions`: shows and drains backends, and shows shares of limits."""

from typing import Any

import click

from gateway.cli.admin_client import AdminClient, admin_options, print_change, print_json, quoted
from gateway.cli.tables import print_table

_REGION = click.argument("region")
_BACKEND = click.argument("backend")


@click.group()
def regions() -> None:
    """Show, drain or restore backends, and show gateway regions' shares of limits."""


@regions.command("list")
@admin_options
def list_command(*, client: AdminClient, as_json: bool) -> None:
    """Show every backend and its state, as the workers report it."""
    answer = client.request("GET", "/admin/regions")
    if as_json:
        print_json(answer)
        return
    rows = []
    for region in answer["regions"]:
        for backend in region["backends"]:
            states = ", ".join(sorted({_state(view) for view in backend["workers"].values()}))
            drained = " (drained)" if backend["drained"] else ""
            origin = f", by DNS from {backend['dns']}" if backend["dns"] else ""
            views = backend["workers"].values()
            problems = sorted({name for view in views for name in view.get("problems", {})})
            broken = f", broken: {', '.join(problems)}" if problems else ""
            state = f"{states or 'unknown'}{drained}{origin}{broken}"
            rows.append((region["name"], backend["id"], state))
    print_table(("region", "backend", "state"), rows)


@regions.command()
@click.option("--tenant", help="Only this tenant's limits.")
@admin_options
def shares(*, tenant: str | None, client: AdminClient, as_json: bool) -> None:
    """Show the gateway regions and their shares of limits."""
    answer = client.request(
        "GET", "/admin/regions/shares", query={"tenant": tenant} if tenant else {}
    )
    if as_json:
        print_json(answer)
        return
    if not answer["regions"]:
        click.echo(
            "no gateway region is live: gateways without SLUICEGATE_REGION do not share limits"
        )
        return
    print_table(
        ("region", "workers", "expires in s"),
        ((each["name"], each["workers"], each["expires_in"]) for each in answer["regions"]),
    )
    if answer["shares"]:
        click.echo()
        print_table(
            ("region", "share", "demand per second", "limit"),
            (
                (
                    row["region"],
                    f"{row['share']:.1%}",
                    f"{row['demand']:.1f}",
                    row["bucket"] or "all others",
                )
                for row in answer["shares"]
            ),
        )


@regions.command()
@_REGION
@_BACKEND
@admin_options
def drain(*, region: str, backend: str, client: AdminClient, as_json: bool) -> None:
    """Stop sending items to a backend. It finishes the items that it has.

    Exit with 1 if a worker has not applied the drain.
    """
    _change(client, region, backend, "drain", as_json=as_json)


@regions.command()
@_REGION
@_BACKEND
@admin_options
def restore(*, region: str, backend: str, client: AdminClient, as_json: bool) -> None:
    """Start sending items to a drained backend again, a few at first.

    Exit with 1 if a worker has not applied the change.
    """
    _change(client, region, backend, "restore", as_json=as_json)


def _state(view: dict[str, Any]) -> str:
    return "ejected" if view["ejected_for"] else str(view["health"])


def _change(client: AdminClient, region: str, backend: str, action: str, *, as_json: bool) -> None:
    path = f"/admin/regions/{quoted(region)}/backends/{quoted(backend)}/{action}"
    answer = client.request("POST", path)
    state = "is drained" if answer["drained"] else "is restored"
    print_change(answer, as_json=as_json, head=f"`{answer['backend']}` {state}")
