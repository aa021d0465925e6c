"""Checks changes of a tenant's limits or budget without making the changes."""

from collections.abc import Collection

import msgspec

from sluicegate.gateway.api.openapi_parts import Json
from sluicegate.gateway.config.difference import FieldChange, find_changes
from sluicegate.gateway.ledger.types import Budget, check_rules
from sluicegate.gateway.types import Rule

DRY_RUN: Json = {"description": "Check the change and list its effects, but change nothing."}


class CheckedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that would be accepted, and the fields that it would change."""

    valid: bool = True
    changes: list[FieldChange]


def check_limits(before: Collection[Rule], after: Collection[Rule]) -> CheckedChange:
    """Return the fields that change when the limits `after` replace `before`.

    Raises:
        InvalidRequest: a rule is invalid.
    """
    check_rules(after)
    return CheckedChange(changes=list(find_changes(tuple(before), tuple(after), "limits")))


def compare_budgets(before: Budget | None, after: Budget | None) -> CheckedChange:
    """Return the fields that change when the budget `after` replaces `before`."""
    return CheckedChange(changes=list(find_changes(before, after, "budget")))
