"""Operations check the role of whoever calls them, whatever face they have."""

from typing import Any, cast

import pytest

from sluicegate.gateway.errors import PermissionDenied
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import SOON, Family
from sluicegate.gateway.operations.operators import Operator, Role

pytestmark = pytest.mark.anyio
FAMILY = Family("operations")


class _Context:
    """A context of which an operation uses the operator only."""

    def __init__(self, *roles: Role) -> None:
        self.operator = Operator("olga", frozenset(roles))


class _Done:
    def __init__(self, *, live: bool) -> None:
        self.live = live


@FAMILY.operation("POST /admin/things/{thing}/pat", "Pat", role=Role.OPERATOR, answers=SOON)
async def pat(context: OperationContext, thing: str, *, dry_run: bool = False) -> str:
    """Pat a thing."""
    return f"{context.operator.name} pats {thing}{' in mind' * dry_run}"


def context_of(*roles: Role) -> OperationContext:
    context: Any = _Context(*roles)
    return cast("OperationContext", context)


async def test_an_operation_is_called_like_its_function() -> None:
    assert await pat(context_of(Role.OPERATOR), "it") == "olga pats it"
    assert await pat(context_of(Role.ADMIN), "it", dry_run=True) == "olga pats it in mind"


async def test_an_operation_refuses_an_operator_without_its_role() -> None:
    with pytest.raises(PermissionDenied, match="needs the role `operator`, but `olga` has"):
        await pat(context_of(Role.VIEWER, Role.BILLING), "it")


def test_a_value_is_one_segment_of_a_path() -> None:
    assert pat.path_to("../a?b") == "/admin/things/..%2Fa%3Fb/pat"


def test_a_change_that_workers_have_not_applied_is_accepted_only() -> None:
    assert pat.status_of(_Done(live=True), is_dry_run=False) == 200
    assert pat.status_of(_Done(live=False), is_dry_run=False) == 202
    assert pat.status_of(_Done(live=False), is_dry_run=True) == 200
