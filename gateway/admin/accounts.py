"""Serves the operators' routes of tenants and keys."""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TypeVar

import msgspec
from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from gateway.admin.model_names import ModelNameValidator
from gateway.admin.openapi import TENANT
from gateway.api.openapi_parts import Content, Json, Operation
from gateway.auth.keys import hash_key, new_key
from gateway.errors import Conflict, DependencyUnavailable, NotFound
from gateway.ledger.accounts import Accounts
from gateway.ledger.ledger import Ledger
from gateway.ledger.types import Key, KeyBounds, Tenant
from gateway.runtime.control import Control, Topic
from gateway.types import Rule

T = TypeVar("T")
_ACTOR = "admin"
_WORKERS_TIMEOUT = 2.0
_LIMITS = [{"name": "minute", "unit": "requests", "capacity": 600, "window": 60.0}]
_KEY: Json = {"description": "The id of a key, not its text.", "example": "key_5f2c51d0a7be9f2c"}
_operation = partial(Operation, tag="accounts")


class NewTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant to create; without `limits` the document's apply."""

    id: str
    """Up to 64 letters, digits, `_`, `.` and `-`."""
    name: str = ""
    """For people; the id where it is left out."""
    limits: tuple[Rule, ...] = ()
    """Limits on all of its keys together."""


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to create; without `models` it may use all."""

    tenant: str
    """The id of the tenant whose key it is."""
    name: str = ""
    """For people."""
    models: list[str] | None = None
    """The models it may use; all where it is left out."""
    limits: tuple[Rule, ...] = ()
    """Limits on this key, beside those of the tenant."""
    expires: datetime | None = None
    """When it ends, with a time zone; never where it is left out."""
    origins: tuple[str, ...] | None = None
    """Origins from whose pages alone it may be used, such as `https://app.example.com`."""
    routes: tuple[str, ...] | None = None
    """Paths that it may be used for, such as `/v1/embed` or `/v1/infer/*`; all if left out."""


class CreatedKey(Key, frozen=True, kw_only=True):
    """A new key, with its text, this once."""

    key: str


class Tenants(msgspec.Struct, frozen=True, kw_only=True):
    """All tenants."""

    tenants: list[Tenant]


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a tenant, or all."""

    keys: list[Key]


class AccountChanges:
    """Makes changes in the ledger, and waits up to `_WORKERS_TIMEOUT` until workers have them.

    Workers that miss the notification read the ledger on their own soon after.
    """

    def __init__(self, *, ledger: Ledger, control: Control) -> None:
        self.accounts = ledger.accounts
        self._control = control

    async def make(self, change: Callable[[Accounts], T]) -> T:
        """Run `change`, which blocks, and notify the workers."""
        made = await asyncio.to_thread(change, self.accounts)
        with contextlib.suppress(DependencyUnavailable):
            version = await self._control.touch(Topic.ACCOUNTS)
            await self._control.wait_for_workers(Topic.ACCOUNTS, version, within=_WORKERS_TIMEOUT)
        return made


class TenantController(Controller):
    """Creates, lists and limits tenants."""

    path = "/admin/tenants"

    @get(
        "/",
        operation=_operation(
            id="list_tenants",
            summary="All tenants",
            errors=(DependencyUnavailable,),
        ),
    )
    async def list_all(self, changes: NamedDependency[AccountChanges]) -> Tenants:
        """Return all tenants."""
        found = await asyncio.to_thread(changes.accounts.tenants)
        return Tenants(tenants=found)

    @post(
        "/",
        operation=_operation(
            id="create_tenant",
            summary="Create a tenant",
            errors=(Conflict, DependencyUnavailable),
            body=(Content(example={"id": "acme", "name": "Acme Ltd.", "limits": _LIMITS}),),
        ),
    )
    async def create(
        self,
        data: JSONBody[NewTenant],
        changes: NamedDependency[AccountChanges],
        model_names: NamedDependency[ModelNameValidator],
    ) -> Tenant:
        """Create a tenant."""
        await model_names.check_rules(data.limits)
        return await changes.make(
            lambda accounts: accounts.create_tenant(
                data.id, name=data.name, rules=data.limits, actor=_ACTOR
            )
        )

    @get(
        "/{tenant:str}",
        operation=_operation(
            id="get_tenant",
            summary="One tenant",
            errors=(NotFound, DependencyUnavailable),
            about={"tenant": TENANT},
        ),
    )
    async def show(self, tenant: FromPath[str], changes: NamedDependency[AccountChanges]) -> Tenant:
        """Return one tenant."""
        return await asyncio.to_thread(changes.accounts.tenant, tenant)

    @put(
        "/{tenant:str}/limits",
        operation=_operation(
            id="set_tenant_limits",
            summary="Replace a tenant's limits",
            errors=(NotFound, DependencyUnavailable),
            body=(Content(example=_LIMITS),),
            about={"tenant": TENANT},
        ),
    )
    async def limit(
        self,
        tenant: FromPath[str],
        data: JSONBody[tuple[Rule, ...]],
        changes: NamedDependency[AccountChanges],
        model_names: NamedDependency[ModelNameValidator],
    ) -> Tenant:
        """Replace a tenant's limits; an empty list means that the document's apply."""
        await model_names.check_rules(data)
        return await changes.make(lambda accounts: accounts.set_limits(tenant, data, actor=_ACTOR))


class KeyController(Controller):
    """Creates, lists, limits and revokes keys."""

    path = "/admin/keys"

    @get(
        "/",
        operation=_operation(
            id="list_keys",
            summary="The keys of a tenant, or all",
            errors=(NotFound, DependencyUnavailable),
            about={"tenant": TENANT},
        ),
    )
    async def list_all(
        self, changes: NamedDependency[AccountChanges], tenant: FromQuery[str | None] = None
    ) -> Keys:
        """Return the keys of a tenant, or all."""
        if tenant is not None:
            await asyncio.to_thread(changes.accounts.tenant, tenant)
        found = await asyncio.to_thread(changes.accounts.keys, tenant)
        return Keys(keys=found)

    @post(
        "/",
        operation=_operation(
            id="create_key",
            summary="Create a key",
            errors=(NotFound, Conflict, DependencyUnavailable),
            body=(Content(example={"tenant": "acme", "name": "website"}),),
        ),
    )
    async def create(
        self,
        data: JSONBody[NewKey],
        changes: NamedDependency[AccountChanges],
        model_names: NamedDependency[ModelNameValidator],
    ) -> CreatedKey:
        """Create a key; its text is in this answer and nowhere else."""
        await model_names.check(data.models or (), field="models")
        await model_names.check_rules(data.limits)
        text = new_key()
        record = await changes.make(
            lambda accounts: accounts.create_key(
                data.tenant,
                key_hash=hash_key(text),
                name=data.name,
                models=data.models,
                rules=data.limits,
                expires=data.expires,
                bounds=KeyBounds(origins=data.origins, routes=data.routes),
                actor=_ACTOR,
            )
        )
        return CreatedKey(**msgspec.structs.asdict(record), key=text)

    @put(
        "/{key:str}/limits",
        operation=_operation(
            id="set_key_limits",
            summary="Replace a key's limits",
            errors=(NotFound, DependencyUnavailable),
            body=(Content(example=_LIMITS),),
            about={"key": _KEY},
        ),
    )
    async def limit(
        self,
        key: FromPath[str],
        data: JSONBody[tuple[Rule, ...]],
        changes: NamedDependency[AccountChanges],
        model_names: NamedDependency[ModelNameValidator],
    ) -> Key:
        """Replace a key's limits; an empty list means that the document's apply."""
        await model_names.check_rules(data)
        return await changes.make(lambda accounts: accounts.set_key_limits(key, data, actor=_ACTOR))

    @put(
        "/{key:str}/bounds",
        operation=_operation(
            id="set_key_bounds",
            summary="Replace the origins and routes that a key is limited to",
            errors=(NotFound, DependencyUnavailable),
            body=(Content(example={"origins": ["https://app.example.com"]}),),
            about={"key": _KEY},
        ),
    )
    async def bound(
        self,
        key: FromPath[str],
        data: JSONBody[KeyBounds],
        changes: NamedDependency[AccountChanges],
    ) -> Key:
        """Replace the origins and routes of a key; what is left out is no bound."""
        return await changes.make(lambda accounts: accounts.set_key_bounds(key, data, actor=_ACTOR))

    @delete(
        "/{key:str}",
        status_code=200,
        operation=_operation(
            id="revoke_key",
            summary="Revoke a key",
            errors=(NotFound, DependencyUnavailable),
            about={"key": _KEY},
        ),
    )
    async def revoke(self, key: FromPath[str], changes: NamedDependency[AccountChanges]) -> Key:
        """Revoke a key for ever."""
        return await changes.make(lambda accounts: accounts.revoke(key, actor=_ACTOR))
