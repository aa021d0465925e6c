"""Creates, lists, rotates and revokes operators, and changes their roles."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, TypeVar

import msgspec

from sluicegate.gateway.auth.keys import hash_key, new_key
from sluicegate.gateway.errors import Conflict, NotFound
from sluicegate.gateway.ledger.types import OperatorAccount
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import Command, Family, Option, Table
from sluicegate.gateway.operations.operators import KEY_PREFIX, Role

T = TypeVar("T")
_HOUR = 3600.0
_LONGEST_OVERLAP = 7 * 24 * _HOUR
_CREATED = 201
_Roles = Annotated[list[Role], msgspec.Meta(min_length=1, max_length=len(Role))]
_ROLE = Option(flag="--role", help="A role of the operator; repeat the option for several roles.")
_NOTES = "key of {name} ({roles}); it is not shown again"
FAMILY = Family(
    "operators", about={"name": {"description": "The name of an operator.", "example": "alice"}}
)


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


@FAMILY.operation(
    "POST /admin/operators",
    "Create an operator with a key",
    role=Role.ADMIN,
    status=_CREATED,
    errors=(Conflict,),
    example={"name": "alice", "roles": ["operator", "billing"]},
    command=Command(
        usage="operators create NAME",
        help="Create the operator NAME, and print the new key. The key is not shown again.",
        example="operators create alice --role operator --role billing",
        prints="{key}",
        notes=_NOTES,
        options={
            "roles": _ROLE,
            "expires": "When the key expires, as 2027-01-01T00:00:00Z.",
        },
    ),
)
async def create_operator(context: OperationContext, wanted: NewOperator) -> CreatedOperator:
    """Create an operator with a key. Only this response contains the key."""
    key = new_key(KEY_PREFIX)
    made = await _change(
        context,
        lambda: context.ledger.operators.create(
            wanted.name,
            roles=wanted.roles,
            key_hash=hash_key(key),
            expires=wanted.expires,
            actor=context.operator.name,
        ),
    )
    return _with_key(made, key)


@FAMILY.operation(
    "GET /admin/operators",
    "All operators with keys",
    role=Role.ADMIN,
    command=Command(
        usage="operators list",
        help="List operators and their roles, without their keys.",
        example="operators list",
        prints=Table(rows="operators", columns=("name", "state", "created", "roles")),
    ),
)
async def list_operators(context: OperationContext) -> Operators:
    """Return all operators with keys, including revoked ones, without the keys' secrets."""
    return Operators(operators=await asyncio.to_thread(context.ledger.operators.accounts))


@FAMILY.operation(
    "PUT /admin/operators/{name}/roles",
    "Replace the roles of an operator",
    role=Role.ADMIN,
    errors=(NotFound, Conflict),
    example={"roles": ["viewer"]},
    command=Command(
        usage="operators roles NAME",
        help="Replace the roles of the operator NAME.",
        example="operators roles alice --role viewer",
        prints="{name} has the roles {roles}",
        options={"roles": _ROLE},
    ),
)
async def set_operator_roles(
    context: OperationContext, name: str, wanted: OperatorRoles
) -> OperatorAccount:
    """Replace the roles of an operator."""
    return await _change(
        context,
        lambda: context.ledger.operators.set_roles(name, wanted.roles, actor=context.operator.name),
    )


@FAMILY.operation(
    "POST /admin/operators/{name}/rotate",
    "Give an operator a new key",
    role=Role.ADMIN,
    errors=(NotFound, Conflict),
    example={"former_valid_for": 3600},
    command=Command(
        usage="operators rotate NAME",
        help="Give the operator NAME a new key, and print the key. The key is not shown again.",
        example="operators rotate alice --former-valid-for 600",
        prints="{key}",
        notes=_NOTES,
        options={
            "former_valid_for": "Seconds for which the former key stays valid; 0 ends it at once."
        },
    ),
)
async def rotate_operator(
    context: OperationContext, name: str, wanted: OperatorRotation
) -> CreatedOperator:
    """Give an operator a new key. The former key stays valid for `former_valid_for` seconds."""
    key = new_key(KEY_PREFIX)
    made = await _change(
        context,
        lambda: context.ledger.operators.rotate(
            name,
            key_hash=hash_key(key),
            keep=wanted.former_valid_for,
            actor=context.operator.name,
        ),
    )
    return _with_key(made, key)


@FAMILY.operation(
    "DELETE /admin/operators/{name}",
    "Revoke the key of an operator",
    role=Role.ADMIN,
    errors=(NotFound,),
    command=Command(
        usage="operators revoke NAME",
        help="Revoke the operator NAME for ever. Within a second, listeners refuse the operator's"
        " key.",
        example="operators revoke alice",
        prints="{name} is revoked",
    ),
)
async def revoke_operator(context: OperationContext, name: str) -> OperatorAccount:
    """Revoke the key of an operator for ever."""
    return await _change(
        context, lambda: context.ledger.operators.revoke(name, actor=context.operator.name)
    )


@FAMILY.operation(
    "GET /admin/whoami",
    "The operator who sent the request",
    role=Role.VIEWER,
    command=Command(
        usage="operators whoami",
        help="Show the name and the roles of the operator whose key is used.",
        example="operators whoami",
        prints="{name}\t{roles:,}",
    ),
)
async def get_own_operator(context: OperationContext) -> OwnOperator:
    """Return the name and roles of the operator who sent the request."""
    return OwnOperator(name=context.operator.name, roles=sorted(context.operator.roles))


async def _change(context: OperationContext, change: Callable[[], T]) -> T:
    """Run `change` in a thread, and apply it in this process.

    Other processes apply the change within a second.
    """
    made = await asyncio.to_thread(change)
    await context.operator_keys.refresh()
    return made


def _with_key(account: OperatorAccount, key: str) -> CreatedOperator:
    return CreatedOperator(**msgspec.structs.asdict(account), key=key)
