"""Says what a change of a tenant's limits or budget would change, without making it."""

from collections.abc import Collection

import msgspec

from gateway.api.openapi_parts import Json
from gateway.config.difference import FieldChange, find_changes
from gateway.ledger.accounts import check_rules
from gateway.ledger.types import Budget
from gateway.types import Rule

DRY_RUN: Json = {"description": "Check the change, say what it changes, and change nothing."}


class CheckedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that would be accepted, and the fields that it would change."""

    valid: bool = True
    changes: list[FieldChange]


def check_limits(before: Collection[Rule], after: Collection[Rule]) -> CheckedChange:
    """Return what other limits would change.

    Raises:
        InvalidRequest: a rule is invalid.
    """
    check_rules(after)
    return CheckedChange(changes=list(find_changes(tuple(before), tuple(after), "limits")))


def compare_budgets(before: Budget | None, after: Budget | None) -> CheckedChange:
    """Return what another budget, or none, would change."""
    return CheckedChange(changes=list(find_changes(before, after, "budget")))
