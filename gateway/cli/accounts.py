"""Implements `sluicegate usage`. It calls the operators' listener."""

import click

from sluicegate.gateway.cli.admin_client import AdminClient, admin_options, print_json
from sluicegate.gateway.cli.tables import print_table
from sluicegate.gateway.ledger.types import GroupBy
from sluicegate.gateway.operations.billing import get_usage

_GROUPS = [group.value for group in GroupBy]


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
    answer = client.carry_out(get_usage, query={k: v for k, v in query.items() if v})
    if as_json:
        print_json(answer)
        return
    columns = (*group_by, "requests", "items", "cost", "currency")
    print_table(columns, ([row.get(name, "") for name in columns] for row in answer["rows"]))
