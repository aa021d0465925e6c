"""Creates, lists and revokes tenants and their keys, and sets their limits."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec

from sluicegate.gateway.api.openapi_parts import Json
from sluicegate.gateway.auth.keys import hash_key, new_key
from sluicegate.gateway.errors import Conflict, NotFound
from sluicegate.gateway.ledger.types import Key, KeyBounds, KeySpec, Tenant
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import TENANT, Command, Family, Table
from sluicegate.gateway.operations.dry_runs import DRY_RUN, CheckedChange, check_limits
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.types import Rule
from sluicegate.wire.settings import stated

DAY = 86_400.0
LONGEST = 7 * DAY
_MOST_KEYS = 10_000
_CREATED = 201
_LIMITS = [{"name": "minute", "unit": "requests", "capacity": 600, "window": 60.0}]
_KEY: Json = {"description": "The id of a key, not its secret.", "example": "key_5f2c51d0a7be9f2c"}
FAMILY = Family("accounts", about={"tenant": TENANT, "key": _KEY, "dry_run": DRY_RUN})


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


@FAMILY.operation("GET /admin/tenants", "All tenants", role=Role.VIEWER)
async def list_tenants(context: OperationContext) -> Tenants:
    """Return all tenants."""
    return Tenants(tenants=await asyncio.to_thread(context.ledger.accounts.tenants))


@FAMILY.operation(
    "POST /admin/tenants",
    "Create a tenant",
    role=Role.OPERATOR,
    status=_CREATED,
    errors=(Conflict,),
    example={"id": "acme", "name": "Acme Ltd.", "limits": _LIMITS},
)
async def create_tenant(context: OperationContext, wanted: NewTenant) -> Tenant:
    """Create a tenant."""
    await context.model_names.check_rules(wanted.limits)
    return await context.change_accounts(
        lambda: context.ledger.accounts.create_tenant(
            wanted.id, name=wanted.name, rules=wanted.limits, actor=context.operator.name
        ),
    )


@FAMILY.operation("GET /admin/tenants/{tenant}", "One tenant", role=Role.VIEWER, errors=(NotFound,))
async def get_tenant(context: OperationContext, tenant: str) -> Tenant:
    """Return one tenant."""
    return await asyncio.to_thread(context.ledger.accounts.tenant, tenant)


@FAMILY.operation(
    "PUT /admin/tenants/{tenant}/limits",
    "Replace a tenant's limits",
    role=Role.OPERATOR,
    errors=(NotFound,),
    example=_LIMITS,
)
async def set_tenant_limits(
    context: OperationContext, tenant: str, limits: tuple[Rule, ...], *, dry_run: bool = False
) -> Tenant | CheckedChange:
    """Replace a tenant's limits. An empty list means the limits in the configuration."""
    await context.model_names.check_rules(limits)
    accounts = context.ledger.accounts
    if dry_run:
        found = await asyncio.to_thread(accounts.tenant, tenant)
        return check_limits(found.limits, limits)
    return await context.change_accounts(
        lambda: accounts.set_limits(tenant, limits, actor=context.operator.name)
    )


@FAMILY.operation(
    "GET /admin/keys",
    "The keys of a tenant, or of all tenants",
    role=Role.VIEWER,
    errors=(NotFound,),
    command=Command(
        usage="keys list",
        help="List keys, without their secrets.",
        example="keys list --tenant acme",
        prints=Table(rows="keys", columns=("id", "tenant", "state", "created", "name")),
        options={"tenant": "The tenant whose keys are listed.  [default: all]"},
    ),
)
async def list_keys(context: OperationContext, *, tenant: str | None = None) -> Keys:
    """Return the keys of a tenant, or of all tenants."""
    accounts = context.ledger.accounts
    if tenant is not None:
        await asyncio.to_thread(accounts.tenant, tenant)
    return Keys(keys=await asyncio.to_thread(accounts.keys, tenant))


@FAMILY.operation(
    "POST /admin/keys",
    "Create a key",
    role=Role.OPERATOR,
    status=_CREATED,
    errors=(NotFound, Conflict),
    example={"tenant": "acme", "name": "website"},
)
async def create_key(context: OperationContext, wanted: NewKey) -> CreatedKey:
    """Create a key. Only this response contains its secret."""
    (created,) = await _create(context, [wanted])
    return created


@FAMILY.operation(
    "POST /admin/keys/bulk",
    "Create many keys as one change",
    role=Role.OPERATOR,
    status=_CREATED,
    errors=(NotFound, Conflict),
    example={"keys": [{"tenant": "acme", "name": "app"}, {"tenant": "beta"}], "new_tenants": True},
)
async def create_keys(context: OperationContext, wanted: NewKeys) -> CreatedKeys:
    """Create many keys as one change, up to 10,000. Only this response contains the secrets."""
    found = await _create(context, wanted.keys, new_tenants=wanted.new_tenants)
    return CreatedKeys(keys=found)


@FAMILY.operation(
    "PUT /admin/keys/{key}/limits",
    "Replace a key's limits",
    role=Role.OPERATOR,
    errors=(NotFound,),
    example=_LIMITS,
)
async def set_key_limits(context: OperationContext, key: str, limits: tuple[Rule, ...]) -> Key:
    """Replace a key's limits. An empty list means the limits in the configuration."""
    await context.model_names.check_rules(limits)
    return await context.change_accounts(
        lambda: context.ledger.accounts.set_key_limits(key, limits, actor=context.operator.name),
    )


@FAMILY.operation(
    "PUT /admin/keys/{key}/bounds",
    "Replace the origins and routes that a key is limited to",
    role=Role.OPERATOR,
    errors=(NotFound,),
    example={"origins": ["https://app.example.com"]},
)
async def set_key_bounds(context: OperationContext, key: str, bounds: KeyBounds) -> Key:
    """Replace the origins and routes that a key is limited to. A missing field allows all."""
    return await context.change_accounts(
        lambda: context.ledger.accounts.set_key_bounds(key, bounds, actor=context.operator.name),
    )


@FAMILY.operation(
    "POST /admin/keys/{key}/rotate",
    "Replace the secret of a key",
    role=Role.OPERATOR,
    errors=(NotFound,),
    example={"former_valid_for": 3600},
)
async def replace_key_text(
    context: OperationContext, key: str, wanted: KeyTextRequest
) -> ReplacedKey:
    """Replace the secret of a key. Only this response contains the new secret."""
    secret = await asyncio.to_thread(new_key)
    made = await context.change_accounts(
        lambda: context.ledger.accounts.replace_secret(
            key,
            key_hash=hash_key(secret),
            keep=wanted.former_valid_for,
            actor=context.operator.name,
        ),
    )
    return ReplacedKey(id=made.id, key=secret, former_expires=made.former_expires)


@FAMILY.operation(
    "DELETE /admin/keys/{key}",
    "Revoke a key",
    role=Role.OPERATOR,
    errors=(NotFound,),
    command=Command(
        usage="keys revoke KEY_ID",
        help="Revoke a key for ever. Workers refuse it within a second.",
        example="keys revoke key_0f3a5c",
        prints="{key_id} is revoked",
    ),
)
async def revoke_key(context: OperationContext, key: str) -> Key:
    """Revoke a key for ever."""
    return await context.change_accounts(
        lambda: context.ledger.accounts.revoke(key, actor=context.operator.name)
    )


async def _create(
    context: OperationContext, wanted: Sequence[NewKey], *, new_tenants: bool = False
) -> list[CreatedKey]:
    """Create keys, all or none. Only the returned values contain the secrets."""
    names = context.model_names
    await names.check({name for key in wanted for name in key.models or ()}, field="models")
    await names.check_rules({rule for key in wanted for rule in key.limits})
    secrets = await asyncio.to_thread(lambda: [new_key() for _ in wanted])
    made = await context.change_accounts(
        lambda: context.ledger.accounts.create_keys(
            [_spec(key, secret) for key, secret in zip(wanted, secrets, strict=True)],
            new_tenants=new_tenants,
            actor=context.operator.name,
        ),
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
