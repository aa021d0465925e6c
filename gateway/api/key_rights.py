"""Checks which routes and models a key may use."""

import time

from sluicegate.gateway.config.spelling import closest
from sluicegate.gateway.errors import BudgetExhausted, PermissionDenied
from sluicegate.gateway.types import Principal


def covers(route: str, path: str) -> bool:
    """Return whether a key's route matches `path`. A route that ends in `/*` covers all below."""
    return path.startswith(route[:-1]) if route.endswith("/*") else path == route


def check_budget(principal: Principal) -> None:
    """Check that the tenant of a key may spend more. Only exhausted budgets need the clock.

    Raises:
        BudgetExhausted: its budget of the month is used up.
    """
    if principal.exhausted_until is not None and time.time_ns() < principal.exhausted_until:
        raise BudgetExhausted(
            "The budget of this month is used up: ask for a higher one, or wait for the next month."
        )


def check_model(principal: Principal, name: str) -> None:
    """Check that a key may use a model, whether it is served or not.

    Raises:
        PermissionDenied: it may not.
    """
    if principal.models is not None and name not in principal.models:
        meant = closest(name, principal.models)
        hint = f" Did you mean `{meant}`?" if meant else ""
        raise PermissionDenied(f"This key may not use the model `{name}`.{hint}")
