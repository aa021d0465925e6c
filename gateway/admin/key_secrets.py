"""Serves the operators' route that gives a key a new secret."""

import asyncio
from datetime import datetime
from typing import Annotated

import msgspec
from litestar import Controller, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from gateway.admin.accounts import KEY, AccountChanges
from gateway.admin.operators import Operator, Role
from gateway.api.openapi_parts import Content, Operation
from gateway.auth.keys import hash_key, new_key
from gateway.errors import DependencyUnavailable, NotFound

DAY = 86_400.0
LONGEST = 7 * DAY


class KeyTextRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a new secret of a key."""

    former_valid_for: Annotated[float, msgspec.Meta(ge=0, le=LONGEST)] = DAY
    """Seconds for which the former secret stays valid, up to seven days. With 0, it becomes invalid
    immediately."""


class ReplacedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key with its new secret."""

    id: str
    key: str
    """The secret. It is not shown again."""
    former_expires: datetime | None
    """The time until which the former secret is valid."""


async def replace_secret(
    key: str, *, keep: float, changes: AccountChanges, actor: str
) -> ReplacedKey:
    """Give a key a new secret. The former secret stays valid for `keep` seconds."""
    secret = await asyncio.to_thread(new_key)
    made = await changes.make(
        lambda accounts: accounts.replace_secret(
            key, key_hash=hash_key(secret), keep=keep, actor=actor
        )
    )
    return ReplacedKey(id=made.id, key=secret, former_expires=made.former_expires)


class KeySecretController(Controller):
    """Gives keys new secrets."""

    path = "/admin/keys"

    @post(
        "/{key:str}/rotate",
        status_code=200,
        opt={"role": Role.OPERATOR},
        operation=Operation(
            id="replace_key_text",
            summary="Replace the secret of a key",
            tag="accounts",
            errors=(NotFound, DependencyUnavailable),
            body=(Content(example={"former_valid_for": 3600}),),
            about={"key": KEY},
        ),
    )
    async def rotate(
        self,
        key: FromPath[str],
        data: JSONBody[KeyTextRequest],
        changes: NamedDependency[AccountChanges],
        operator: NamedDependency[Operator],
    ) -> ReplacedKey:
        """Replace the secret of a key. Only this response contains the new secret."""
        return await replace_secret(
            key, keep=data.former_valid_for, changes=changes, actor=operator.name
        )
