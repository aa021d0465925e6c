"""Serves the operators' routes for tenants' budgets."""

import asyncio
from functools import partial

from litestar import Controller, delete, get, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from gateway.admin.accounts import AccountChanges
from gateway.admin.active_document import ActiveDocumentReader
from gateway.admin.dry_runs import DRY_RUN, CheckedChange, compare_budgets
from gateway.admin.openapi import TENANT
from gateway.admin.operators import Operator, Role
from gateway.api.openapi_parts import Content, Operation
from gateway.errors import ConfigurationError, DependencyUnavailable, NotFound
from gateway.ledger.ledger import Ledger
from gateway.ledger.types import Budget, BudgetReport, Tenant

_BUDGET = {"amount": "250.00", "thresholds": [80, 100], "refuse": True}
_operation = partial(
    Operation,
    tag="accounts",
    errors=(NotFound, ConfigurationError, DependencyUnavailable),
    about={"tenant": TENANT},
)


class BudgetController(Controller):
    """Sets, shows and removes the budget of a tenant."""

    path = "/admin/tenants/{tenant:str}/budget"

    @get(
        "/",
        opt={"role": Role.VIEWER},
        operation=_operation(id="get_budget", summary="A tenant's budget and this month's cost"),
    )
    async def show(
        self,
        tenant: FromPath[str],
        ledger: NamedDependency[Ledger],
        active: NamedDependency[ActiveDocumentReader],
    ) -> BudgetReport:
        """Return a tenant's budget with this month's cost. Without a budget, the status is 404."""
        prices = (await active.document()).prices
        await asyncio.to_thread(ledger.accounts.tenant, tenant)
        found = await asyncio.to_thread(ledger.budgets.status, tenant, prices)
        if found is None:
            raise NotFound(f"the tenant `{tenant}` has no budget")
        return found

    @put(
        "/",
        opt={"role": Role.BILLING},
        operation=_operation(
            id="set_budget",
            summary="Replace a tenant's budget",
            body=(Content(example=_BUDGET),),
            about={"tenant": TENANT, "dry_run": DRY_RUN},
        ),
    )
    async def replace(
        self,
        tenant: FromPath[str],
        data: JSONBody[Budget],
        changes: NamedDependency[AccountChanges],
        ledger: NamedDependency[Ledger],
        active: NamedDependency[ActiveDocumentReader],
        operator: NamedDependency[Operator],
        dry_run: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
    ) -> Tenant | CheckedChange:
        """Replace a tenant's monthly budget."""
        prices = (await active.document()).prices
        budgets = ledger.budgets
        if dry_run:
            found = await asyncio.to_thread(ledger.accounts.tenant, tenant)
            wanted = await asyncio.to_thread(budgets.checked, data, prices)
            return compare_budgets(found.budget, wanted)
        return await changes.make(
            lambda _: budgets.set(tenant, data, prices=prices, actor=operator.name)
        )

    @delete(
        "/",
        status_code=200,
        opt={"role": Role.BILLING},
        operation=_operation(id="remove_budget", summary="Remove a tenant's budget"),
    )
    async def remove(
        self,
        tenant: FromPath[str],
        changes: NamedDependency[AccountChanges],
        ledger: NamedDependency[Ledger],
        operator: NamedDependency[Operator],
    ) -> Tenant:
        """Remove a tenant's monthly budget."""
        budgets = ledger.budgets
        return await changes.make(lambda _: budgets.set(tenant, None, actor=operator.name))
