"""Names operators, their roles, and what each role may do."""

from enum import StrEnum
from typing import Final

import msgspec


class Role(StrEnum):
    """Names what operators may do; a role includes some others, see `Operator.may`."""

    METRICS = "metrics"
    """Reads `/metrics`."""
    VIEWER = "viewer"
    """Reads all but invoices and operators."""
    BILLING = "billing"
    """Also reads invoices, and sets budgets and prices."""
    OPERATOR = "operator"
    """Also changes the document but for its prices, models, backends, tenants and keys."""
    ADMIN = "admin"
    """May do everything, and decides who else may."""


_READING: Final = frozenset({Role.METRICS, Role.VIEWER})
_INCLUDED: Final = {
    Role.METRICS: frozenset({Role.METRICS}),
    Role.VIEWER: _READING,
    Role.BILLING: _READING | {Role.BILLING},
    Role.OPERATOR: _READING | {Role.OPERATOR},
    Role.ADMIN: frozenset(Role),
}


class Operator(msgspec.Struct, frozen=True):
    """Identifies who operates the gateway, by the name that the audit shows."""

    name: str
    roles: frozenset[Role]

    def may(self, role: Role) -> bool:
        """Return whether a role of the operator is, or includes, `role`."""
        return any(role in _INCLUDED[own] for own in self.roles)


def required_role(method: str, opt: dict[str, object]) -> Role:
    """Return what a route needs: its `role`, else VIEWER to read and ADMIN to change."""
    role = opt.get("role")
    if isinstance(role, Role):
        return role
    return Role.VIEWER if method in ("GET", "HEAD", "OPTIONS") else Role.ADMIN
