"""Implements the commands of `sluicegate regions` that show backends and shares of limits."""

from typing import Any

import click

from sluicegate.gateway.cli.admin_client import AdminClient, admin_options, print_json
from sluicegate.gateway.cli.tables import print_table
from sluicegate.gateway.operations.regions import list_regions, list_shares


@click.command("list")
@admin_options
def list_command(*, client: AdminClient, as_json: bool) -> None:
    """Show every backend and its state, as the workers report it."""
    answer = client.carry_out(list_regions)
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


@click.command()
@click.option("--tenant", help="Only this tenant's limits.")
@admin_options
def shares(*, tenant: str | None, client: AdminClient, as_json: bool) -> None:
    """Show the gateway regions and their shares of limits."""
    answer = client.carry_out(list_shares, query={"tenant": tenant} if tenant else {})
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


def _state(view: dict[str, Any]) -> str:
    return "ejected" if view["ejected_for"] else str(view["health"])


COMMANDS = (list_command, shares)
