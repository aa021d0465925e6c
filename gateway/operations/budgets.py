"""Sets, shows and removes the monthly budgets of tenants."""

import asyncio

from sluicegate.gateway.errors import ConfigurationError, NotFound
from sluicegate.gateway.ledger.types import Budget, BudgetReport, Tenant
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import TENANT, Command, Family, Option
from sluicegate.gateway.operations.dry_runs import DRY_RUN, CheckedChange, compare_budgets
from sluicegate.gateway.operations.operators import Role

FAMILY = Family("accounts", about={"tenant": TENANT, "dry_run": DRY_RUN})
_PATH = "/admin/tenants/{tenant}/budget"
_ERRORS = (NotFound, ConfigurationError)


@FAMILY.operation(
    f"PUT {_PATH}",
    "Replace a tenant's budget",
    role=Role.BILLING,
    errors=_ERRORS,
    example={"amount": "250.00", "thresholds": [80, 100], "refuse": True},
    command=Command(
        usage="budgets set TENANT AMOUNT",
        help="Set the monthly budget of TENANT to AMOUNT, such as 250.00.",
        example="budgets set acme 250.00 --refuse",
        prints="{tenant} has a budget of {budget[amount]} {budget[currency]} per month",
        options={
            "currency": "Required if prices have several currencies.",
            "thresholds": Option(
                flag="--threshold",
                help="Percentage at which a webhook is sent.  [default: 80 and 100]",
            ),
            "refuse": "Refuse requests once the amount is reached.",
        },
    ),
)
async def set_budget(
    context: OperationContext, tenant: str, budget: Budget, *, dry_run: bool = False
) -> Tenant | CheckedChange:
    """Replace a tenant's monthly budget."""
    prices = (await context.active.document()).prices
    budgets, accounts = context.ledger.budgets, context.ledger.accounts
    if dry_run:
        found = await asyncio.to_thread(accounts.tenant, tenant)
        wanted = await asyncio.to_thread(budgets.checked, budget, prices)
        return compare_budgets(found.budget, wanted)
    return await context.change_accounts(
        lambda: budgets.set(tenant, budget, prices=prices, actor=context.operator.name),
    )


@FAMILY.operation(
    f"GET {_PATH}",
    "A tenant's budget and this month's cost",
    role=Role.VIEWER,
    errors=_ERRORS,
    command=Command(
        usage="budgets show TENANT",
        help="Show the budget of TENANT, and how much of it is left this month.",
        example="budgets show acme",
        prints="{month}: {spent} of {amount} spent, {remaining} left ({currency})",
    ),
)
async def get_budget(context: OperationContext, tenant: str) -> BudgetReport:
    """Return a tenant's budget with this month's cost. Without a budget, the status is 404."""
    prices = (await context.active.document()).prices
    await asyncio.to_thread(context.ledger.accounts.tenant, tenant)
    found = await asyncio.to_thread(context.ledger.budgets.status, tenant, prices)
    if found is None:
        raise NotFound(f"the tenant `{tenant}` has no budget")
    return found


@FAMILY.operation(
    f"DELETE {_PATH}",
    "Remove a tenant's budget",
    role=Role.BILLING,
    errors=_ERRORS,
    command=Command(
        usage="budgets remove TENANT",
        help="Remove the budget of TENANT.",
        example="budgets remove acme",
        prints="{tenant} has no budget",
    ),
)
async def remove_budget(context: OperationContext, tenant: str) -> Tenant:
    """Remove a tenant's monthly budget."""
    budgets = context.ledger.budgets
    return await context.change_accounts(
        lambda: budgets.set(tenant, None, actor=context.operator.name)
    )
