"""Creates, rotates and revokes keys, and sets their limits, on the page of their tenant."""

import asyncio
from typing import Any

import msgspec
from litestar import Controller, Response, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from sluicegate.gateway.console.access import AnyRequest, Context
from sluicegate.gateway.console.form_fields import fields_of
from sluicegate.gateway.console.forms import Fields, moment_of, one, rules_of, words_of
from sluicegate.gateway.console.frame import Frame
from sluicegate.gateway.console.tenants import key_context, tenant_context
from sluicegate.gateway.errors import InvalidRequest, NotFound
from sluicegate.gateway.ledger.accounts import Accounts
from sluicegate.gateway.ledger.types import KeyBounds
from sluicegate.gateway.operations.accounts import (
    DAY,
    LONGEST,
    KeyTextRequest,
    NewKey,
    create_key,
    replace_key_text,
    revoke_key,
    set_key_bounds,
    set_key_limits,
)

_HOUR = 3_600.0
KEPT = {"0": 0.0, "hour": _HOUR, "day": DAY, "week": LONGEST}
"""The choices for how long the former secret stays valid after a rotation, in seconds."""


class IssuedKey(msgspec.Struct, frozen=True, kw_only=True):
    """The new secret of a key. It is shown only once."""

    key: str
    secret: str
    is_rotated: bool


class TenantKeysController(Controller):
    """Changes keys. Each response is the updated list of the tenant's keys."""

    path = "/tenants/{tenant:str}/keys"
    include_in_schema = False

    @post("/", status_code=200, opt={"role": create_key.role})
    async def create(
        self,
        request: AnyRequest,
        tenant: FromPath[str],
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Create a key, and show its secret."""
        wanted = _new_key(tenant, await fields_of(request))
        made = await create_key(context, wanted)
        issued = IssuedKey(key=made.id, secret=made.key, is_rotated=False)
        return await _list(request, frame, context, tenant, issued=issued)

    @post("/{key:str}/rotate", status_code=200, opt={"role": replace_key_text.role})
    async def rotate(
        self,
        request: AnyRequest,
        tenant: FromPath[str],
        key: FromPath[str],
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Give a key a new secret, and show it."""
        await _check_owner(context, tenant, key)
        keep = KEPT.get(one(await fields_of(request), "keep"), DAY)
        made = await replace_key_text(context, key, KeyTextRequest(former_valid_for=keep))
        issued = IssuedKey(key=made.id, secret=made.key, is_rotated=True)
        return await _list(request, frame, context, tenant, issued=issued)

    @post("/{key:str}/revoke", status_code=200, opt={"role": revoke_key.role})
    async def revoke(
        self,
        request: AnyRequest,
        tenant: FromPath[str],
        key: FromPath[str],
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Revoke a key for ever."""
        await _check_owner(context, tenant, key)
        await revoke_key(context, key)
        return await _list(request, frame, context, tenant, done=f"The key {key} is revoked.")

    @post("/{key:str}/bounds", status_code=200, opt={"role": set_key_bounds.role})
    async def bound(
        self,
        request: AnyRequest,
        tenant: FromPath[str],
        key: FromPath[str],
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Replace the web origins and API routes to which a key is limited."""
        await _check_owner(context, tenant, key)
        fields = await fields_of(request)
        bounds = KeyBounds(origins=words_of(fields, "origins"), routes=words_of(fields, "routes"))
        await set_key_bounds(context, key, bounds)
        done = f"The origins and routes of {key} are set."
        return await _list(request, frame, context, tenant, done=done)

    @post("/{key:str}/limits", status_code=200, opt={"role": set_key_limits.role})
    async def limit(
        self,
        request: AnyRequest,
        tenant: FromPath[str],
        key: FromPath[str],
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Replace the limits of a key."""
        await _check_owner(context, tenant, key)
        await set_key_limits(context, key, rules_of(await fields_of(request)))
        return await _list(request, frame, context, tenant, done=f"The limits of {key} are set.")


async def _list(
    request: AnyRequest,
    frame: Frame,
    context: Context,
    tenant: str,
    *,
    issued: IssuedKey | None = None,
    done: str = "",
) -> Response[str]:
    def read(accounts: Accounts) -> dict[str, Any]:
        return tenant_context(accounts.tenant(tenant)) | key_context(accounts.keys(tenant))

    found = await asyncio.to_thread(read, context.ledger.accounts)
    shown = found | {"issued": issued, "done": done}
    return frame.render(request, "tenants/_keys.html", shown)


async def _check_owner(context: Context, tenant: str, key: str) -> None:
    """Raise `NotFound` unless the key belongs to the tenant whose page was used."""
    keys = await asyncio.to_thread(context.ledger.accounts.keys, tenant)
    if key not in {each.id for each in keys}:
        raise NotFound(f"`{tenant[:80]}` has no key `{key[:80]}`")


def _new_key(tenant: str, fields: Fields) -> NewKey:
    models = words_of(fields, "models")
    expires = moment_of(fields, "expires")
    name = one(fields, "name")
    if not name:
        raise InvalidRequest("`name` is empty: enter what the key is for")
    return NewKey(
        tenant=tenant,
        name=name,
        models=None if models is None else list(models),
        expires=expires,
        origins=words_of(fields, "origins"),
        routes=words_of(fields, "routes"),
    )
