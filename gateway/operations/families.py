"""Lists the families of operations."""

from gateway.operations import accounts, budgets

FAMILIES = (accounts.FAMILY, budgets.FAMILY)
