"""Defines operators and their roles. A role may include other roles."""

from enum import StrEnum
from typing import Final

import msgspec

from sluicegate.gateway.errors import PermissionDenied

KEY_PREFIX: Final = "op"
"""The start of operators' keys."""


class Role(StrEnum):
    """Names what an operator may do. Some roles include others; see `Operator.may`."""

    METRICS = "metrics"
    """Reads `/metrics`."""
    VIEWER = "viewer"
    """Reads everything except invoices and operators."""
    BILLING = "billing"
    """May do what `viewer` may, and also reads invoices and sets budgets and prices."""
    OPERATOR = "operator"
    """May do what `viewer` may, and also changes models, backends, tenants, keys and the
    configuration document, except prices."""
    ADMIN = "admin"
    """May do everything, including the management of operators."""


_READING: Final = frozenset({Role.METRICS, Role.VIEWER})
_INCLUDED: Final = {
    Role.METRICS: frozenset({Role.METRICS}),
    Role.VIEWER: _READING,
    Role.BILLING: _READING | {Role.BILLING},
    Role.OPERATOR: _READING | {Role.OPERATOR},
    Role.ADMIN: frozenset(Role),
}


class Operator(msgspec.Struct, frozen=True):
    """An operator: the name that the audit log shows, and the operator's roles."""

    name: str
    roles: frozenset[Role]

    def may(self, role: Role) -> bool:
        """Return whether one of the operator's roles is or includes `role`."""
        return any(role in _INCLUDED[own] for own in self.roles)


def check_role(operator: Operator, role: Role) -> None:
    """Check that an operator has a role.

    Raises:
        PermissionDenied: the operator lacks the role.
    """
    if not operator.may(role):
        own = ", ".join(f"`{each}`" for each in sorted(operator.roles)) or "none"
        raise PermissionDenied(
            f"this route needs the role `{role}`, but `{operator.name}` has {own}:"
            " ask an operator with the role `admin` to add it"
        )


def required_role(method: str, opt: dict[str, object]) -> Role:
    """Return the role that a route requires. The default is VIEWER to read and ADMIN to change."""
    role = opt.get("role")
    if isinstance(role, Role):
        return role
    return Role.VIEWER if method in ("GET", "HEAD", "OPTIONS") else Role.ADMIN
