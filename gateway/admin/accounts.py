"""Serves the operators' routes for tenants and keys."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, TypeVar

import msgspec
from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from gateway.admin.dry_runs import DRY_RUN, CheckedChange, check_limits
from gateway.admin.model_names import ModelNameValidator
from gateway.admin.openapi import TENANT
from gateway.admin.operators import Operator, Role
from gateway.api.openapi_parts import Content, Json, Operation
from gateway.auth.keys import hash_key, new_key
from gateway.errors import Conflict, DependencyUnavailable, NotFound
from gateway.ledger.accounts import Accounts
from gateway.ledger.ledger import Ledger
from gateway.ledger.types import Key, KeyBounds, KeySpec, Tenant
from gateway.runtime.control import Control, Topic
from gateway.types import Rule
from wire.settings import stated

T = TypeVar("T")
_WORKERS_TIMEOUT = 2.0
_MOST_KEYS = 10_000
_LIMITS = [{"name": "minute", "unit": "requests", "capacity": 600, "window": 60.0}]
KEY: Json = {"description": "The id of a key, not its secret.", "example": "key_5f2c51d0a7be9f2c"}
_operation = partial(Operation, tag="accounts")


class NewTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant to create. Without `limits`, the configuration document's limits apply to it."""

    id: Annotated[str, stated(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    """Up to 64 letters, digits, `_`, `.` and `-`."""
    name: str = ""
    """A name that people see. The default is the id."""
    limits: tuple[Rule, ...] = ()
    """Limits on all keys of the tenant together."""


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key to create."""

    tenant: str
    """The id of the tenant that owns the key."""
    name: str = ""
    """A name that people see."""
    models: list[str] | None = None
    """The models that the key may use. The default is all models."""
    limits: tuple[Rule, ...] = ()
    """Limits on this key, in addition to the tenant's limits."""
    expires: datetime | None = None
    """When the key expires: a time with a time zone. By default, the key never expires."""
    origins: tuple[str, ...] | None = None
    """Origins of the web pages that may use the key, such as `https://app.example.com`. By default,
    any client may use the key."""
    routes: tuple[str, ...] | None = None
    """Paths that the key may be used for, such as `/v1/embed` or `/v1/infer/*`. The default is all
    paths."""


class CreatedKey(Key, frozen=True, kw_only=True):
    """A new key with its secret."""

    key: str
    """The secret. It is not shown again."""


class NewKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys to create together. Either all of them are created, or none."""

    keys: Annotated[list[NewKey], msgspec.Meta(min_length=1, max_length=_MOST_KEYS)]
    new_tenants: bool = False
    """Whether to create tenants that do not exist."""


class CreatedKeys(msgspec.Struct, frozen=True, kw_only=True):
    """New keys with their secrets, in the order of the request."""

    keys: list[CreatedKey]


class Tenants(msgspec.Struct, frozen=True, kw_only=True):
    """All tenants."""

    tenants: list[Tenant]


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a tenant, or of all tenants."""

    keys: list[Key]


class AccountChanges:
    """Makes changes in the ledger, and waits at most two seconds for all workers to apply them.

    A worker that misses the notification of a change finds the change when it next polls the
    ledger.
    """

    def __init__(self, *, ledger: Ledger, control: Control) -> None:
        self.accounts = ledger.accounts
        self._control = control

    async def make(self, change: Callable[[Accounts], T]) -> T:
        """Run `change` in a thread, notify the workers, and wait for them."""
        made = await asyncio.to_thread(change, self.accounts)
        with contextlib.suppress(DependencyUnavailable):
            version = await self._control.touch(Topic.ACCOUNTS)
            await self._control.wait_for_workers(Topic.ACCOUNTS, version, within=_WORKERS_TIMEOUT)
        return made


class TenantController(Controller):
    """Creates and lists tenants, and sets their limits."""

    path = "/admin/tenants"

    @get(
        "/",
        opt={"role": Role.VIEWER},
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
        opt={"role": Role.OPERATOR},
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
        operator: NamedDependency[Operator],
    ) -> Tenant:
        """Create a tenant."""
        await model_names.check_rules(data.limits)
        return await changes.make(
            lambda accounts: accounts.create_tenant(
                data.id, name=data.name, rules=data.limits, actor=operator.name
            )
        )

    @get(
        "/{tenant:str}",
        opt={"role": Role.VIEWER},
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
        opt={"role": Role.OPERATOR},
        operation=_operation(
            id="set_tenant_limits",
            summary="Replace a tenant's limits",
            errors=(NotFound, DependencyUnavailable),
            body=(Content(example=_LIMITS),),
            about={"tenant": TENANT, "dry_run": DRY_RUN},
        ),
    )
    async def limit(
        self,
        tenant: FromPath[str],
        data: JSONBody[tuple[Rule, ...]],
        changes: NamedDependency[AccountChanges],
        model_names: NamedDependency[ModelNameValidator],
        operator: NamedDependency[Operator],
        dry_run: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
    ) -> Tenant | CheckedChange:
        """Replace a tenant's limits. An empty list means the limits in the configuration."""
        await model_names.check_rules(data)
        if dry_run:
            found = await asyncio.to_thread(changes.accounts.tenant, tenant)
            return check_limits(found.limits, data)
        return await changes.make(
            lambda accounts: accounts.set_limits(tenant, data, actor=operator.name)
        )


class KeyController(Controller):
    """Creates, lists and revokes keys, and sets their limits."""

    path = "/admin/keys"

    @get(
        "/",
        opt={"role": Role.VIEWER},
        operation=_operation(
            id="list_keys",
            summary="The keys of a tenant, or of all tenants",
            errors=(NotFound, DependencyUnavailable),
            about={"tenant": TENANT},
        ),
    )
    async def list_all(
        self, changes: NamedDependency[AccountChanges], tenant: FromQuery[str | None] = None
    ) -> Keys:
        """Return the keys of a tenant, or of all tenants."""
        if tenant is not None:
            await asyncio.to_thread(changes.accounts.tenant, tenant)
        found = await asyncio.to_thread(changes.accounts.keys, tenant)
        return Keys(keys=found)

    @post(
        "/",
        opt={"role": Role.OPERATOR},
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
        operator: NamedDependency[Operator],
    ) -> CreatedKey:
        """Create a key. Only this response contains its secret."""
        (created,) = await create_keys([data], changes, model_names, actor=operator.name)
        return created

    @post(
        "/bulk",
        opt={"role": Role.OPERATOR},
        operation=_operation(
            id="create_keys",
            summary="Create many keys as one change",
            errors=(NotFound, Conflict, DependencyUnavailable),
            body=(
                Content(
                    example={
                        "keys": [{"tenant": "acme", "name": "app"}, {"tenant": "beta"}],
                        "new_tenants": True,
                    }
                ),
            ),
        ),
    )
    async def create_many(
        self,
        data: JSONBody[NewKeys],
        changes: NamedDependency[AccountChanges],
        model_names: NamedDependency[ModelNameValidator],
        operator: NamedDependency[Operator],
    ) -> CreatedKeys:
        """Create many keys as one change, up to 10,000. Only this response contains the secrets."""
        found = await create_keys(
            data.keys, changes, model_names, actor=operator.name, new_tenants=data.new_tenants
        )
        return CreatedKeys(keys=found)

    @put(
        "/{key:str}/limits",
        opt={"role": Role.OPERATOR},
        operation=_operation(
            id="set_key_limits",
            summary="Replace a key's limits",
            errors=(NotFound, DependencyUnavailable),
            body=(Content(example=_LIMITS),),
            about={"key": KEY},
        ),
    )
    async def limit(
        self,
        key: FromPath[str],
        data: JSONBody[tuple[Rule, ...]],
        changes: NamedDependency[AccountChanges],
        model_names: NamedDependency[ModelNameValidator],
        operator: NamedDependency[Operator],
    ) -> Key:
        """Replace a key's limits. An empty list means the limits in the configuration."""
        await model_names.check_rules(data)
        return await changes.make(
            lambda accounts: accounts.set_key_limits(key, data, actor=operator.name)
        )

    @put(
        "/{key:str}/bounds",
        opt={"role": Role.OPERATOR},
        operation=_operation(
            id="set_key_bounds",
            summary="Replace the origins and routes that a key is limited to",
            errors=(NotFound, DependencyUnavailable),
            body=(Content(example={"origins": ["https://app.example.com"]}),),
            about={"key": KEY},
        ),
    )
    async def bound(
        self,
        key: FromPath[str],
        data: JSONBody[KeyBounds],
        changes: NamedDependency[AccountChanges],
        operator: NamedDependency[Operator],
    ) -> Key:
        """Replace the origins and routes that a key is limited to. A missing field allows all."""
        return await changes.make(
            lambda accounts: accounts.set_key_bounds(key, data, actor=operator.name)
        )

    @delete(
        "/{key:str}",
        status_code=200,
        opt={"role": Role.OPERATOR},
        operation=_operation(
            id="revoke_key",
            summary="Revoke a key",
            errors=(NotFound, DependencyUnavailable),
            about={"key": KEY},
        ),
    )
    async def revoke(
        self,
        key: FromPath[str],
        changes: NamedDependency[AccountChanges],
        operator: NamedDependency[Operator],
    ) -> Key:
        """Revoke a key for ever."""
        return await changes.make(lambda accounts: accounts.revoke(key, actor=operator.name))


async def create_keys(
    wanted: Sequence[NewKey],
    changes: AccountChanges,
    model_names: ModelNameValidator,
    *,
    actor: str,
    new_tenants: bool = False,
) -> list[CreatedKey]:
    """Create keys, all or none. Only the returned values contain the secrets."""
    await model_names.check({name for key in wanted for name in key.models or ()}, field="models")
    await model_names.check_rules({rule for key in wanted for rule in key.limits})
    secrets = await asyncio.to_thread(lambda: [new_key() for _ in wanted])
    made = await changes.make(
        lambda accounts: accounts.create_keys(
            [_spec(key, secret) for key, secret in zip(wanted, secrets, strict=True)],
            new_tenants=new_tenants,
            actor=actor,
        )
    )
    return [
        CreatedKey(**msgspec.structs.asdict(key), key=secret)
        for key, secret in zip(made, secrets, strict=True)
    ]


def _spec(key: NewKey, secret: str) -> KeySpec:
    return KeySpec(
        tenant=key.tenant,
        key_hash=hash_key(secret),
        name=key.name,
        models=key.models,
        rules=key.limits,
        expires=key.expires,
        bounds=KeyBounds(origins=key.origins, routes=key.routes),
    )
