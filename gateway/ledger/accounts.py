"""Stores tenants, their keys and their limits. Of a key only the hash is stored."""

import re
import secrets
from collections.abc import Collection
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, Table, func, insert, or_, select, update

from gateway.config.checks import ORIGIN_RULE, is_origin, rule_findings
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.ledger import schema
from gateway.ledger.audit import Audit
from gateway.ledger.store import Store, to_datetime, to_nanoseconds
from gateway.ledger.types import NO_BOUNDS, Key, KeyBounds, Tenant
from gateway.types import KeyId, Principal, Rule, TenantId

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ROUTE: Final = re.compile(r"/[A-Za-z0-9_./~-]{0,200}(/\*)?")
_SUBJECT: Final = "accounts"
# The factor of changes in `version`; the number of expired keys is added to it.
_STEP: Final = 1 << 24

# Rules are alike for most keys: a hundred thousand keys then share a few objects.
_decode_rules = lru_cache(maxsize=4096)(msgspec.json.Decoder(tuple[Rule, ...]).decode)
_models = msgspec.json.Decoder(tuple[str, ...])


class Accounts:
    """Reads and changes accounts. `actor` is the author of a change in the audit."""

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
        if not _ID.fullmatch(tenant):
            raise InvalidRequest(
                f"`{tenant[:80]}` cannot name a tenant: use up to 64 letters, digits, `_`, `.`, `-`"
            )
        row: dict[str, Any] = {"id": tenant, "name": name or tenant}
        row |= {"rules": _encode_rules(rules), "created": self._store.clock()}
        with self._store.writing() as connection:
            if not self._store.insert_new(connection, schema.tenants, [row]):
                raise Conflict(f"the tenant `{tenant}` exists already")
            self._record_change(connection, actor, "tenant.create", tenant)
            return _tenant(_get(connection, schema.tenants, tenant, "tenant"))

    def tenants(self) -> list[Tenant]:
        """Return all tenants by id."""
        with self._store.reading() as connection:
            rows = connection.execute(select(schema.tenants).order_by(schema.tenants.c.id))
            return [_tenant(row) for row in rows]

    def tenant(self, tenant: str) -> Tenant:
        """Return a tenant.

        Raises:
            NotFound: there is no such tenant.
        """
        with self._store.reading() as connection:
            return _tenant(_get(connection, schema.tenants, tenant, "tenant"))

    def set_limits(self, tenant: str, rules: Collection[Rule], *, actor: str = "system") -> Tenant:
        """Replace a tenant's rules; none means that the document's apply.

        Raises:
            NotFound: there is no such tenant.
            InvalidRequest: a rule is invalid.
        """
        encoded = _encode_rules(rules)
        with self._store.writing() as connection:
            _get(connection, schema.tenants, tenant, "tenant")
            table = schema.tenants
            connection.execute(update(table).where(table.c.id == tenant).values(rules=encoded))
            self._record_change(connection, actor, "tenant.limits", tenant, rules=encoded)
            return _tenant(_get(connection, table, tenant, "tenant"))

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
        """Create a key of `tenant` from the hash of its text.

        Raises:
            NotFound: there is no such tenant.
            Conflict: the same text is a key already.
            InvalidRequest: a rule, an origin or a route is invalid, or the time of expiry is past.
        """
        key = f"key_{secrets.token_hex(8)}"
        row: dict[str, Any] = {"id": key, "tenant": tenant, "hash": key_hash, "name": name}
        row |= {"rules": _encode_rules(rules), "models": _encode_models(models)}
        row |= {"created": self._store.clock(), "revoked": None} | _encode_bounds(bounds)
        row["expires"] = None if expires is None else to_nanoseconds(expires)
        if expires is not None and row["expires"] <= row["created"]:
            raise InvalidRequest(f"`expires` is past: {expires.isoformat()}; name a later time")
        with self._store.writing() as connection:
            _get(connection, schema.tenants, tenant, "tenant")
            if not self._store.insert_new(connection, schema.keys, [row]):
                raise Conflict("a key with the same text exists already")
            self._record_change(connection, actor, "key.create", key, tenant=tenant, name=name)
            return _key(_get(connection, schema.keys, key, "key"))

    def keys(self, tenant: str | None = None) -> list[Key]:
        """Return the keys of `tenant`, or all, oldest first; revoked and expired ones too."""
        table = schema.keys
        query = select(table).order_by(table.c.created, table.c.id)
        if tenant is not None:
            query = query.where(table.c.tenant == tenant)
        with self._store.reading() as connection:
            return [_key(row) for row in connection.execute(query)]

    def find_key(self, key_hash: str) -> Key | None:
        """Return the key whose text has this hash, also if it is revoked."""
        query = select(schema.keys).where(schema.keys.c.hash == key_hash)
        with self._store.reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else _key(row)

    def set_key_limits(self, key: str, rules: Collection[Rule], *, actor: str = "system") -> Key:
        """Replace a key's rules; none means that the document's apply.

        Raises:
            NotFound: there is no such key.
            InvalidRequest: a rule is invalid.
        """
        return self._change_key(key, actor, "key.limits", {"rules": _encode_rules(rules)})

    def set_key_bounds(self, key: str, bounds: KeyBounds, *, actor: str = "system") -> Key:
        """Replace the origins and routes that a key is limited to.

        Raises:
            NotFound: there is no such key.
            InvalidRequest: an origin or a route is invalid.
        """
        return self._change_key(key, actor, "key.bounds", _encode_bounds(bounds))

    def rotate(
        self, key: str, *, key_hash: str, former_hash: str, keep: float, actor: str = "system"
    ) -> Key:
        """Give a key another text, by its hash; `former_hash` is valid for `keep` seconds.

        All other texts that it had end at once: an answer with one may have been lost. A former
        text that asks again, and one of a key that expires, is valid no longer than it was.

        Raises:
            NotFound: there is no such key.
        """
        until = self._store.clock() + int(keep * 1_000_000_000)
        values: dict[str, object] = {"hash": key_hash, "former_hash": former_hash}
        table = schema.keys
        with self._store.writing() as connection:
            before = _get(connection, table, key, "key")
            ends = [before.expires, before.former_expires if before.hash != former_hash else None]
            values["former_expires"] = min([until, *(end for end in ends if end is not None)])
            connection.execute(update(table).where(table.c.id == key).values(**values))
            # Not the hashes, which no reader of the audit needs.
            self._record_change(connection, actor, "key.rotate", key, tenant=before.tenant)
            return _key(_get(connection, table, key, "key"))

    def revoke(self, key: str, *, actor: str = "system") -> Key:
        """Revoke a key for ever; no effect on a revoked one.

        Raises:
            NotFound: there is no such key.
        """
        return self._change_key(key, actor, "key.revoke", {"revoked": self._store.clock()})

    def load_principals(self) -> dict[str, Principal]:
        """Return the principals of valid keys (not revoked, not expired), by the key's hash."""
        keys, tenants = schema.keys, schema.tenants
        query = (
            select(keys, tenants.c.rules.label("tenant_rules"))
            .join(tenants, tenants.c.id == keys.c.tenant)
            .where(keys.c.revoked.is_(None))
            .where(or_(keys.c.expires.is_(None), keys.c.expires > self._store.clock()))
        )
        with self._store.reading() as connection:
            rows = list(connection.execute(query))
        now = self._store.clock()
        found = {row.hash: _principal(row) for row in rows}
        for row in rows:
            if row.former_expires is not None and row.former_expires > now:
                former = msgspec.structs.replace(found[row.hash], expires=row.former_expires)
                found.setdefault(row.former_hash, former)
        return found

    def version(self) -> int:
        """Return a number that changes whenever the result of `load_principals` may change.

        Cheap enough for a poll every second. A key's expiry changes it, too.
        """
        changes, keys = schema.changes, schema.keys
        now = self._store.clock()
        expired = select(func.count()).where(keys.c.expires <= now)
        former = select(func.count()).where(keys.c.former_expires <= now)
        count = select(changes.c.count).where(changes.c.subject == _SUBJECT)
        with self._store.reading() as connection:
            ended = int(connection.scalar(expired) or 0) + int(connection.scalar(former) or 0)
            return int(connection.scalar(count) or 0) * _STEP + ended

    def _change_key(self, key: str, actor: str, action: str, values: dict[str, object]) -> Key:
        table = schema.keys
        with self._store.writing() as connection:
            before = _get(connection, table, key, "key")
            if action == "key.revoke" and before.revoked is not None:
                return _key(before)
            connection.execute(update(table).where(table.c.id == key).values(**values))
            self._record_change(connection, actor, action, key, tenant=before.tenant, **values)
            return _key(_get(connection, table, key, "key"))

    def _record_change(
        self, connection: Connection, actor: str, action: str, subject: str, **detail: object
    ) -> None:
        """Write the audit and count the change, in the transaction that makes it."""
        table = schema.changes
        self._audit.add(connection, actor=actor, action=action, subject=subject, detail=detail)
        counted = connection.execute(
            update(table).where(table.c.subject == _SUBJECT).values(count=table.c.count + 1)
        )
        if counted.rowcount == 0:
            connection.execute(insert(table), {"subject": _SUBJECT, "count": 1})


def _get(connection: Connection, table: Table, key: str, word: str) -> Row[Any]:
    row = connection.execute(select(table).where(table.c.id == key)).first()
    if row is None:
        raise NotFound(f"there is no {word} `{key[:80]}`")
    return row


def _encode_rules(rules: Collection[Rule]) -> str:
    for finding in rule_findings(rules, ()):
        index, field = finding.path
        raise InvalidRequest(f"`limits[{index}].{field}`: {finding.detail}")
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


def _tenant(row: Row[Any]) -> Tenant:
    return Tenant(
        id=TenantId(row.id),
        name=row.name,
        limits=_decode_rules(row.rules),
        created=to_datetime(row.created),
    )


def _key(row: Row[Any]) -> Key:
    return Key(
        id=KeyId(row.id),
        tenant=TenantId(row.tenant),
        name=row.name,
        limits=_decode_rules(row.rules),
        models=None if row.models is None else _models.decode(row.models),
        created=to_datetime(row.created),
        expires=None if row.expires is None else to_datetime(row.expires),
        revoked=None if row.revoked is None else to_datetime(row.revoked),
        origins=None if row.origins is None else _models.decode(row.origins),
        routes=None if row.routes is None else _models.decode(row.routes),
        former_expires=None if row.former_expires is None else to_datetime(row.former_expires),
    )


def _principal(row: Row[Any]) -> Principal:
    return Principal(
        tenant=TenantId(row.tenant),
        key=KeyId(row.id),
        tenant_rules=_decode_rules(row.tenant_rules),
        key_rules=_decode_rules(row.rules),
        models=None if row.models is None else frozenset(_models.decode(row.models)),
        expires=row.expires,
        origins=None if row.origins is None else frozenset(_models.decode(row.origins)),
        routes=None if row.routes is None else frozenset(_models.decode(row.routes)),
    )
