"""Roles of operators, and the keys of the environment."""

import pytest

from sluicegate.gateway.admin.operator_directory import OperatorDirectory
from sluicegate.gateway.operations.operators import Operator, Role, required_role


def operator(*roles: Role) -> Operator:
    return Operator("alice", frozenset(roles))


@pytest.mark.parametrize(
    ("own", "allowed"),
    [
        (Role.METRICS, {Role.METRICS}),
        (Role.VIEWER, {Role.METRICS, Role.VIEWER}),
        (Role.BILLING, {Role.METRICS, Role.VIEWER, Role.BILLING}),
        (Role.OPERATOR, {Role.METRICS, Role.VIEWER, Role.OPERATOR}),
        (Role.ADMIN, set(Role)),
    ],
)
def test_a_role_includes_others(own: Role, allowed: set[Role]) -> None:
    assert {role for role in Role if operator(own).may(role)} == allowed


def test_roles_add_up_and_without_any_nothing_is_allowed() -> None:
    both = operator(Role.BILLING, Role.OPERATOR)

    assert both.may(Role.BILLING)
    assert both.may(Role.OPERATOR)
    assert not both.may(Role.ADMIN)
    assert not any(operator().may(role) for role in Role)


def test_a_route_that_says_nothing_needs_viewer_to_read_and_admin_to_change() -> None:
    assert required_role("GET", {}) is Role.VIEWER
    assert required_role("DELETE", {}) is Role.ADMIN
    assert required_role("PUT", {"role": Role.BILLING}) is Role.BILLING


@pytest.mark.anyio
@pytest.mark.parametrize("token", ["", "wrong", "the-admin-key-", "ü\udc80"])
async def test_only_the_keys_of_the_environment_are_recognized(token: str) -> None:
    directory = OperatorDirectory(admin_keys=["the-admin-key"], metrics_keys=["the-metrics-key"])

    assert await directory.authenticate(token) is None
    assert await directory.authenticate("the-admin-key") == Operator(
        "admin", frozenset({Role.ADMIN})
    )
    metrics = await directory.authenticate("the-metrics-key")
    assert metrics == Operator("metrics", frozenset({Role.METRICS}))


@pytest.mark.anyio
async def test_without_keys_nobody_is_an_operator() -> None:
    assert await OperatorDirectory(admin_keys=["", ""]).authenticate("") is None


@pytest.mark.anyio
async def test_both_keys_of_a_rotation_are_those_of_one_operator() -> None:
    directory = OperatorDirectory(admin_keys=["new", "old"], metrics_keys=["new-m", "old-m"])

    found = [await directory.authenticate(key) for key in ("new", "old", "new-m", "old-m")]

    assert [operator.name for operator in found if operator] == ["admin"] * 2 + ["metrics"] * 2
