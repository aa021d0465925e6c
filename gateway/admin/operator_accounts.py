"""Serves the routes that manage operators, their roles and their keys."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from gateway.api.openapi_parts import Content, Json, Operation
from gateway.auth.keys import hash_key, new_key
from gateway.errors import Conflict, NotFound
from gateway.ledger.operators import OperatorStore
from gateway.ledger.types import OperatorAccount
from gateway.operations.operator_keys import PREFIX, OperatorKeys
from gateway.operations.operators import Operator, Role

T = TypeVar("T")
_HOUR = 3600.0
_LONGEST_OVERLAP = 7 * 24 * _HOUR
_Roles = Annotated[list[Role], msgspec.Meta(min_length=1, max_length=len(Role))]
_ABOUT: dict[str, Json] = {"name": {"description": "The name of an operator.", "example": "alice"}}
_operation = partial(Operation, tag="operators")


class NewOperator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator to create."""

    name: str
    """Up to 64 letters, digits, `_`, `.`, `@` and `-`. The audit log shows this name."""
    roles: _Roles
    """What the operator may do."""
    expires: datetime | None = None
    """When the key expires: a time with a time zone. By default, the key never expires."""


class OperatorRoles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new roles of an operator."""

    roles: _Roles


class OperatorRotation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to give an operator a new key."""

    former_valid_for: Annotated[float, msgspec.Meta(ge=0, le=_LONGEST_OVERLAP)] = _HOUR
    """Seconds for which the former key stays valid, up to seven days. With 0, it becomes invalid
    immediately."""


class CreatedOperator(OperatorAccount, frozen=True, kw_only=True):
    """An operator with a new key."""

    key: str
    """The secret of the key. It is not shown again."""


class Operators(msgspec.Struct, frozen=True, kw_only=True):
    """All operators with keys."""

    operators: list[OperatorAccount]


class OwnOperator(msgspec.Struct, frozen=True, kw_only=True):
    """The operator who sent the request."""

    name: str
    roles: list[Role]


class OperatorChanges(NamedTuple):
    """Changes operators in the ledger.

    This process applies a change immediately. Other processes apply the change within a second.
    """

    store: OperatorStore
    keys: OperatorKeys

    async def make(self, change: Callable[[OperatorStore], T]) -> T:
        """Run `change` in a thread, and read the operators' keys again."""
        made = await asyncio.to_thread(change, self.store)
        await self.keys.refresh()
        return made


class OperatorController(Controller):
    """Creates, lists, rotates and revokes operators."""

    path = "/admin/operators"

    @get(
        "/",
        opt={"role": Role.ADMIN},
        operation=_operation(id="list_operators", summary="All operators with keys"),
    )
    async def list_all(self, operator_changes: NamedDependency[OperatorChanges]) -> Operators:
        """Return all operators with keys, including revoked ones, without the keys' secrets."""
        found = await asyncio.to_thread(operator_changes.store.accounts)
        return Operators(operators=found)

    @post(
        "/",
        opt={"role": Role.ADMIN},
        operation=_operation(
            id="create_operator",
            summary="Create an operator with a key",
            errors=(Conflict,),
            body=(Content(example={"name": "alice", "roles": ["operator", "billing"]}),),
        ),
    )
    async def create(
        self,
        data: JSONBody[NewOperator],
        operator_changes: NamedDependency[OperatorChanges],
        operator: NamedDependency[Operator],
    ) -> CreatedOperator:
        """Create an operator with a key. Only this response contains the key."""
        key = new_key(PREFIX)
        made = await operator_changes.make(
            lambda store: store.create(
                data.name,
                roles=data.roles,
                key_hash=hash_key(key),
                expires=data.expires,
                actor=operator.name,
            )
        )
        return _with_key(made, key)

    @put(
        "/{name:str}/roles",
        opt={"role": Role.ADMIN},
        operation=_operation(
            id="set_operator_roles",
            summary="Replace the roles of an operator",
            errors=(NotFound, Conflict),
            body=(Content(example={"roles": ["viewer"]}),),
            about=_ABOUT,
        ),
    )
    async def set_roles(
        self,
        name: FromPath[str],
        data: JSONBody[OperatorRoles],
        operator_changes: NamedDependency[OperatorChanges],
        operator: NamedDependency[Operator],
    ) -> OperatorAccount:
        """Replace the roles of an operator."""
        return await operator_changes.make(
            lambda store: store.set_roles(name, data.roles, actor=operator.name)
        )

    @post(
        "/{name:str}/rotate",
        status_code=200,
        opt={"role": Role.ADMIN},
        operation=_operation(
            id="rotate_operator",
            summary="Give an operator a new key",
            errors=(NotFound, Conflict),
            body=(Content(example={"former_valid_for": 3600}),),
            about=_ABOUT,
        ),
    )
    async def rotate(
        self,
        name: FromPath[str],
        data: JSONBody[OperatorRotation],
        operator_changes: NamedDependency[OperatorChanges],
        operator: NamedDependency[Operator],
    ) -> CreatedOperator:
        """Give an operator a new key. The former key stays valid for `former_valid_for` seconds."""
        key = new_key(PREFIX)
        made = await operator_changes.make(
            lambda store: store.rotate(
                name, key_hash=hash_key(key), keep=data.former_valid_for, actor=operator.name
            )
        )
        return _with_key(made, key)

    @delete(
        "/{name:str}",
        status_code=200,
        opt={"role": Role.ADMIN},
        operation=_operation(
            id="revoke_operator",
            summary="Revoke the key of an operator",
            errors=(NotFound,),
            about=_ABOUT,
        ),
    )
    async def revoke(
        self,
        name: FromPath[str],
        operator_changes: NamedDependency[OperatorChanges],
        operator: NamedDependency[Operator],
    ) -> OperatorAccount:
        """Revoke the key of an operator for ever."""
        return await operator_changes.make(lambda store: store.revoke(name, actor=operator.name))


@get(
    "/admin/whoami",
    opt={"role": Role.VIEWER},
    operation=_operation(id="get_own_operator", summary="The operator who sent the request"),
)
async def whoami(operator: NamedDependency[Operator]) -> OwnOperator:
    """Return the name and roles of the operator who sent the request."""
    return OwnOperator(name=operator.name, roles=sorted(operator.roles))


def _with_key(account: OperatorAccount, key: str) -> CreatedOperator:
    return CreatedOperator(**msgspec.structs.asdict(account), key=key)
