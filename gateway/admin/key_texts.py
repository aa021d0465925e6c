"""Serves the operators' route that gives a key another text."""

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
    """Says how long the newest text of a key stays valid beside the one to come."""

    former_valid_for: Annotated[float, msgspec.Meta(ge=0, le=LONGEST)] = DAY
    """Seconds, up to seven days; 0 ends it at once."""


class ReplacedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key with its new text, this once."""

    id: str
    key: str
    former_expires: datetime | None
    """Until when the text before is valid."""


async def replace_text(
    key: str, *, keep: float, changes: AccountChanges, actor: str
) -> ReplacedKey:
    """Give a key another text; its newest one stays valid for `keep` seconds."""
    text = await asyncio.to_thread(new_key)
    made = await changes.make(
        lambda accounts: accounts.replace_text(key, key_hash=hash_key(text), keep=keep, actor=actor)
    )
    return ReplacedKey(id=made.id, key=text, former_expires=made.former_expires)


class KeyTextController(Controller):
    """Gives keys other texts."""

    path = "/admin/keys"

    @post(
        "/{key:str}/rotate",
        status_code=200,
        opt={"role": Role.OPERATOR},
        operation=Operation(
            id="replace_key_text",
            summary="Replace the text of a key",
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
        """Return the key's new text, which is shown this once."""
        return await replace_text(
            key, keep=data.former_valid_for, changes=changes, actor=operator.name
        )
