"""Lists the families of operations."""

from sluicegate.gateway.operations import (
    accounts,
    billing,
    budgets,
    caches,
    configuration,
    dead_letters,
    guards,
    model_plans,
    models,
    operator_accounts,
    regions,
    reported_usage,
)

FAMILIES = (
    configuration.FAMILY,
    *(accounts.FAMILY, budgets.FAMILY),
    *(billing.FAMILY, reported_usage.FAMILY, dead_letters.FAMILY),
    operator_accounts.FAMILY,
    *(caches.FAMILY, models.FAMILY, model_plans.FAMILY, regions.FAMILY),
    guards.FAMILY,
)
