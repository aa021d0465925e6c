"""Implements `sluicegate budgets`. It calls the operators' listener."""

from typing import Any

import click

from gateway.cli.admin_client import AdminClient, admin_options, print_json, quoted


@click.group()
def budgets() -> None:
    """Set, show and remove the monthly budgets of tenants."""


@budgets.command(name="set")
@click.argument("tenant")
@click.argument("amount")
@click.option("--currency", default="", help="Required if prices have several currencies.")
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    type=int,
    help="Percentage at which a webhook is sent.  [default: 80 and 100]",
)
@click.option("--refuse", is_flag=True, help="Refuse requests once the amount is reached.")
@admin_options
def set_budget(
    *,
    tenant: str,
    amount: str,
    currency: str,
    thresholds: tuple[int, ...],
    refuse: bool,
    client: AdminClient,
    as_json: bool,
) -> None:
    """Set the monthly budget of TENANT to AMOUNT, such as 250.00."""
    body: dict[str, Any] = {"amount": amount, "currency": currency, "refuse": refuse}
    body |= {"thresholds": thresholds} if thresholds else {}
    answer = client.request("PUT", _path(tenant), body=body)
    if as_json:
        print_json(answer)
    else:
        budget = answer["budget"]
        click.echo(f"{tenant} has a budget of {budget['amount']} {budget['currency']} per month")


@budgets.command()
@click.argument("tenant")
@admin_options
def show(*, tenant: str, client: AdminClient, as_json: bool) -> None:
    """Show the budget of TENANT, and how much of it is left this month."""
    answer = client.request("GET", _path(tenant))
    if as_json:
        print_json(answer)
    else:
        names = ("month", "spent", "amount", "remaining", "currency")
        click.echo("{}: {} of {} spent, {} left ({})".format(*map(answer.get, names)))


@budgets.command()
@click.argument("tenant")
@admin_options
def remove(*, tenant: str, client: AdminClient, as_json: bool) -> None:
    """Remove the budget of TENANT."""
    answer = client.request("DELETE", _path(tenant))
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{tenant} has no budget")


def _path(tenant: str) -> str:
    return f"/admin/tenants/{quoted(tenant)}/budget"
