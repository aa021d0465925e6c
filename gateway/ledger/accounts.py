"""Stores tenants, their API keys and their limits. A key's secret is stored only as a hash."""

import re
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, Table, select, update

from sluicegate.gateway.config.checks import ORIGIN_RULE, is_origin
from sluicegate.gateway.errors import AuthenticationFailed, Conflict, InvalidRequest, NotFound
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.audit import Audit
from sluicegate.gateway.ledger.principals import decode_rules, record_change
from sluicegate.gateway.ledger.store import Store, to_datetime, to_nanoseconds
from sluicegate.gateway.ledger.types import (
    NO_BOUNDS,
    Budget,
    Key,
    KeyBounds,
    KeySpec,
    Tenant,
    check_rules,
)
from sluicegate.gateway.types import KeyId, Rule, TenantId

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ROUTE: Final = re.compile(r"/[A-Za-z0-9_./~-]{0,200}(/\*)?")
_IDS_PER_QUERY: Final = 500
_decode_budget: Final = msgspec.json.Decoder(Budget).decode
_models: Final = msgspec.json.Decoder(tuple[str, ...])


class Accounts:
    """Reads and changes tenants and keys. All calls block.

    `actor` is the person or program that makes a change. The audit log names it.
    """

    def __init__(self, store: Store, audit: Audit) -> None:
        self._store = store
        self._audit = audit

    def create_tenant(
        self, tenant: str, *, name: str = "", rules: Collection[Rule] = (), actor: str = "system"
    ) -> Tenant:
        """Create a tenant.

        Raises:
            Conflict: the tenant exists already.
            InvalidRequest: the id or a rule is invalid.
        """
        row = self._tenant_row(tenant, name, rules)
        with self._store.writing() as connection:
            if not self._store.insert_new(connection, schema.tenants, [row]):
                raise Conflict(f"the tenant `{tenant}` exists already")
            self._audit.add(connection, actor=actor, action="tenant.create", subject=tenant)
            record_change(self._store, connection)
            return tenant_of(_get(connection, schema.tenants, tenant, "tenant"))

    def tenants(self) -> list[Tenant]:
        """Return all tenants, sorted by id."""
        with self._store.reading() as connection:
            rows = connection.execute(select(schema.tenants).order_by(schema.tenants.c.id))
            return [tenant_of(row) for row in rows]

    def missing(self, tenants: Sequence[str]) -> list[str]:
        """Return the names in `tenants` for which there is no tenant, in the given order."""
        with self._store.reading() as connection:
            found = _existing(connection, schema.tenants, tenants)
        return [each for each in tenants if each not in found]

    def tenant(self, tenant: str) -> Tenant:
        """Return a tenant.

        Raises:
            NotFound: the tenant does not exist.
        """
        with self._store.reading() as connection:
            return tenant_of(_get(connection, schema.tenants, tenant, "tenant"))

    def set_limits(self, tenant: str, rules: Collection[Rule], *, actor: str = "system") -> Tenant:
        """Replace a tenant's limits.

        If `rules` is empty, the configuration document's limits apply to the tenant.

        Raises:
            NotFound: the tenant does not exist.
            InvalidRequest: a rule is invalid.
        """
        encoded = _encode_rules(rules)
        with self._store.writing() as connection:
            _get(connection, schema.tenants, tenant, "tenant")
            table = schema.tenants
            connection.execute(update(table).where(table.c.id == tenant).values(rules=encoded))
            detail: dict[str, object] = {"rules": encoded}
            self._audit.add(
                connection, actor=actor, action="tenant.limits", subject=tenant, detail=detail
            )
            record_change(self._store, connection, tenant=tenant)
            return tenant_of(_get(connection, table, tenant, "tenant"))

    def create_key(
        self,
        tenant: str,
        *,
        key_hash: str,
        name: str = "",
        models: Collection[str] | None = None,
        rules: Collection[Rule] = (),
        expires: datetime | None = None,
        bounds: KeyBounds = NO_BOUNDS,
        actor: str = "system",
    ) -> Key:
        """Create a key of `tenant` from the hash of its secret.

        Raises:
            NotFound: the tenant does not exist.
            Conflict: another key has the same secret.
            InvalidRequest: a rule, an origin or a route is invalid, or `expires` is in the past.
        """
        spec = KeySpec(
            tenant=tenant,
            key_hash=key_hash,
            name=name,
            models=models,
            rules=rules,
            expires=expires,
            bounds=bounds,
        )
        (key,) = self.create_keys([spec], actor=actor)
        return key

    def create_keys(
        self, specs: Sequence[KeySpec], *, new_tenants: bool = False, actor: str = "system"
    ) -> list[Key]:
        """Create the keys that `specs` describe, in one transaction.

        If `new_tenants` is set, tenants that do not exist are created, too.

        Raises:
            NotFound: a tenant does not exist, and `new_tenants` is not set.
            Conflict: another key has the same secret.
            InvalidRequest: a tenant's id, a rule, an origin or a route is invalid, or `expires` is
                in the past.
        """
        rows = [self._key_row(spec) for spec in specs]
        tenants = {spec.tenant for spec in specs}
        with self._store.writing() as connection:
            missing = sorted(tenants - _existing(connection, schema.tenants, sorted(tenants)))
            if missing and not new_tenants:
                raise NotFound(f"there is no tenant `{missing[0][:80]}`")
            made = [self._tenant_row(tenant, "", ()) for tenant in missing]
            self._store.insert_new(connection, schema.tenants, made)
            if self._store.insert_new(connection, schema.keys, rows) < len(rows):
                raise Conflict("a key with the same secret exists already")
            self._audit.add_all(connection, actor, "tenant.create", [(one, {}) for one in missing])
            details = [(row["id"], {"tenant": row["tenant"], "name": row["name"]}) for row in rows]
            self._audit.add_all(connection, actor, "key.create", details)
            record_change(self._store, connection, keys=[row["id"] for row in rows])
        return [_key(SimpleNamespace(**row)) for row in rows]

    def keys(self, tenant: str | None = None) -> list[Key]:
        """Return the keys of `tenant`, the oldest first. `None` stands for all tenants.

        Revoked and expired keys are included.
        """
        table = schema.keys
        query = select(table).order_by(table.c.created, table.c.id)
        if tenant is not None:
            query = query.where(table.c.tenant == tenant)
        with self._store.reading() as connection:
            return [_key(row) for row in connection.execute(query)]

    def find_key(self, key_hash: str) -> Key | None:
        """Return the key whose newest secret has this hash, even if the key is revoked."""
        query = select(schema.keys).where(schema.keys.c.hash == key_hash)
        with self._store.reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else _key(row)

    def set_key_limits(self, key: str, rules: Collection[Rule], *, actor: str = "system") -> Key:
        """Replace a key's limits.

        If `rules` is empty, the configuration document's limits apply to the key.

        Raises:
            NotFound: the key does not exist.
            InvalidRequest: a rule is invalid.
        """
        return self._change_key(key, actor, "key.limits", {"rules": _encode_rules(rules)})

    def set_key_bounds(self, key: str, bounds: KeyBounds, *, actor: str = "system") -> Key:
        """Replace the web origins and API routes to which a key is limited.

        Raises:
            NotFound: the key does not exist.
            InvalidRequest: an origin or a route is invalid.
        """
        return self._change_key(key, actor, "key.bounds", _encode_bounds(bounds))

    def rotate(
        self, key: str, *, key_hash: str, former_hash: str, keep: float, actor: str = "system"
    ) -> Key:
        """Give a key a new secret, at the request of a caller that sent a valid secret of the key.

        `key_hash` is the hash of the new secret. `former_hash` is the hash of the secret that the
        caller sent. The sent secret stays valid for `keep` seconds, but not beyond its own expiry
        or the key's expiry.

        All other secrets of the key become invalid immediately. For example, a caller that never
        received its new secret can call this method again with the old secret. The new secret that
        was lost then becomes invalid.

        Raises:
            NotFound: the key does not exist.
            AuthenticationFailed: the key or the caller's secret has expired or is revoked.
        """
        now = self._store.clock()
        until = now + int(keep * 1_000_000_000)
        table = schema.keys
        with self._store.writing() as connection:
            # Locks the key, so that a second rotation with the same secret sees the result of the
            # first.
            before = _get(connection, table, key, "key", for_update=True)
            if not _is_valid(before, former_hash, now):
                raise AuthenticationFailed("This secret has expired. Send the key's newest secret.")
            ends = [before.expires, before.former_expires if before.hash != former_hash else None]
            until = min([until, *(end for end in ends if end is not None)])
            values = {"hash": key_hash} | former_secret(former_hash, until, now)
            connection.execute(update(table).where(table.c.id == key).values(**values))
            # The hashes stay out of the audit log.
            self._record(connection, actor, "key.rotate", key, tenant=before.tenant)
            rotated = _key(_get(connection, table, key, "key"))
        return msgspec.structs.replace(rotated, former_expires=to_datetime(until))

    def replace_secret(self, key: str, *, key_hash: str, keep: float, actor: str) -> Key:
        """Give a key a new secret, at the request of an operator.

        The present secret stays valid for `keep` seconds, but not beyond the key's expiry. An older
        secret becomes invalid immediately.

        Raises:
            NotFound: the key does not exist.
            InvalidRequest: the key is revoked or expired.
        """
        now = self._store.clock()
        table = schema.keys
        with self._store.writing() as connection:
            before = _get(connection, table, key, "key", for_update=True)
            if not _is_valid(before, before.hash, now):
                raise InvalidRequest(f"the key `{key[:80]}` is revoked or expired: create another")
            ends = [now + int(keep * 1_000_000_000), before.expires]
            until = min(end for end in ends if end is not None)
            values = {"hash": key_hash} | former_secret(before.hash, until, now)
            connection.execute(update(table).where(table.c.id == key).values(**values))
            self._record(connection, actor, "key.rotate", key, tenant=before.tenant, keep=keep)
            rotated = _key(_get(connection, table, key, "key"))
        return msgspec.structs.replace(rotated, former_expires=to_datetime(until))

    def revoke(self, key: str, *, actor: str = "system") -> Key:
        """Revoke a key for ever. Revoking a revoked key changes nothing.

        Raises:
            NotFound: the key does not exist.
        """
        return self._change_key(key, actor, "key.revoke", {"revoked": self._store.clock()})

    def _change_key(self, key: str, actor: str, action: str, values: dict[str, object]) -> Key:
        table = schema.keys
        with self._store.writing() as connection:
            before = _get(connection, table, key, "key")
            if action == "key.revoke" and before.revoked is not None:
                return _key(before)
            connection.execute(update(table).where(table.c.id == key).values(**values))
            self._record(connection, actor, action, key, tenant=before.tenant, **values)
            return _key(_get(connection, table, key, "key"))

    def _record(
        self, connection: Connection, actor: str, action: str, key: str, **detail: object
    ) -> None:
        """In the caller's transaction, write an audit entry and announce the change to workers."""
        self._audit.add(connection, actor=actor, action=action, subject=key, detail=detail)
        record_change(self._store, connection, keys=[key])

    def _tenant_row(self, tenant: str, name: str, rules: Collection[Rule]) -> dict[str, Any]:
        if not _ID.fullmatch(tenant):
            raise InvalidRequest(
                f"`{tenant[:80]}` cannot name a tenant: use up to 64 letters, digits, `_`, `.`, `-`"
            )
        row = {"id": tenant, "name": name or tenant, "rules": _encode_rules(rules)}
        return row | {"created": self._store.clock()}

    def _key_row(self, spec: KeySpec) -> dict[str, Any]:
        row: dict[str, Any] = {"id": f"key_{secrets.token_hex(8)}", "tenant": spec.tenant}
        row |= {"hash": spec.key_hash, "name": spec.name, "rules": _encode_rules(spec.rules)}
        row |= {"models": _encode_models(spec.models), "created": self._store.clock()}
        row |= {"revoked": None, "former_expires": None} | _encode_bounds(spec.bounds)
        expires = spec.expires
        row["expires"] = None if expires is None else to_nanoseconds(expires)
        if expires is not None and row["expires"] <= row["created"]:
            raise InvalidRequest(
                f"`expires` is in the past: {expires.isoformat()}; name a later time"
            )
        return row


def _existing(connection: Connection, table: Table, ids: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for start in range(0, len(ids), _IDS_PER_QUERY):
        some = table.c.id.in_(ids[start : start + _IDS_PER_QUERY])
        found.update(connection.scalars(select(table.c.id).where(some)))
    return found


def _get(
    connection: Connection, table: Table, key: str, word: str, *, for_update: bool = False
) -> Row[Any]:
    query = select(table).where(table.c.id == key)
    row = connection.execute(query.with_for_update() if for_update else query).first()
    if row is None:
        raise NotFound(f"there is no {word} `{key[:80]}`")
    return row


def _encode_rules(rules: Collection[Rule]) -> str:
    check_rules(rules)
    return msgspec.json.encode(tuple(rules)).decode()


def _encode_models(models: Collection[str] | None) -> str | None:
    return None if models is None else msgspec.json.encode(sorted(set(models))).decode()


def _encode_bounds(bounds: KeyBounds) -> dict[str, object]:
    for origin in bounds.origins or ():
        if not is_origin(origin):
            raise InvalidRequest(f"`{origin[:80]}` in `origins` {ORIGIN_RULE}")
    for route in bounds.routes or ():
        if not _ROUTE.fullmatch(route):
            raise InvalidRequest(
                f"`{route[:80]}` in `routes` must be a path such as `/v1/embed` or `/v1/infer/*`"
            )
    return {"origins": _encode_models(bounds.origins), "routes": _encode_models(bounds.routes)}


def tenant_of(row: Row[Any]) -> Tenant:
    """Return the tenant that a row of the table `tenants` describes."""
    return Tenant(
        id=TenantId(row.id),
        name=row.name,
        limits=decode_rules(row.rules),
        created=to_datetime(row.created),
        budget=None if row.budget is None else _decode_budget(row.budget),
    )


def _key(row: Row[Any] | SimpleNamespace) -> Key:
    return Key(
        id=KeyId(row.id),
        tenant=TenantId(row.tenant),
        name=row.name,
        limits=decode_rules(row.rules),
        models=None if row.models is None else _models.decode(row.models),
        created=to_datetime(row.created),
        expires=None if row.expires is None else to_datetime(row.expires),
        revoked=None if row.revoked is None else to_datetime(row.revoked),
        origins=None if row.origins is None else _models.decode(row.origins),
        routes=None if row.routes is None else _models.decode(row.routes),
        former_expires=None if row.former_expires is None else to_datetime(row.former_expires),
    )


def former_secret(key_hash: str, until: int, now: int) -> dict[str, Any]:
    """Return the columns of a secret that was replaced and is valid `until` a time.

    If it ends at once, nothing of it is kept. With a time, it would still be valid on machines
    whose clocks are behind this one's.
    """
    if until <= now:
        return {"former_hash": None, "former_expires": None}
    return {"former_hash": key_hash, "former_expires": until}


def _is_valid(row: Row[Any], key_hash: str, now: int) -> bool:
    """Return whether `key_hash` is the hash of a secret of the key, and is valid at `now`."""
    if row.revoked is not None or (row.expires is not None and row.expires <= now):
        return False
    is_former = row.former_hash == key_hash and (row.former_expires or 0) > now
    return row.hash == key_hash or is_former
