"""Lists the families of operations."""

from gateway.operations import (
    accounts,
    billing,
    budgets,
    dead_letters,
    operator_accounts,
    reported_usage,
)

FAMILIES = (
    *(accounts.FAMILY, budgets.FAMILY),
    *(billing.FAMILY, reported_usage.FAMILY, dead_letters.FAMILY),
    operator_accounts.FAMILY,
)
