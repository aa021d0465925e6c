"""Reads principals for workers: all of them at first, and later only the changed ones.

A principal is a tenant, an API key and their limits. Changes of tenants and keys are numbered. Each
change writes a row to `account_changes` that names the changed keys or the changed tenant. The row
in `changes` that holds the last number stays locked until the change commits. So changes become
visible in the order of their numbers.

A worker remembers the number of the last change that it has read. It then reads only the keys and
tenants that later rows name. It reads everything again in two cases:

- A row is missing. Programs before schema 7 write no rows, and old rows are deleted.
- The row with the remembered number has a different random token than before, because the ledger
  was replaced, or restored from a backup.
"""

import secrets
from collections.abc import Collection, Generator, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, Select, delete, insert, or_, select

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.store import Store
from sluicegate.gateway.types import KeyId, Principal, Rule, TenantId

KEPT_CHANGES: Final = 4096
_SUBJECT: Final = "accounts"
_PAGE: Final = 10_000
_IDS_PER_QUERY: Final = 500
_log: Final = schema.account_changes
_keys: Final = schema.keys
_tenants: Final = schema.tenants
_ids: Final = msgspec.json.Decoder(tuple[str, ...])
_names: Final = msgspec.json.Decoder(frozenset[str])
# Most keys have the same limits and the same models. The caches let them share a few objects.
decode_rules: Final = lru_cache(maxsize=4096)(msgspec.json.Decoder(tuple[Rule, ...]).decode)
_decode_names: Final = lru_cache(maxsize=4096)(_names.decode)


_valid: Final = (
    select(
        *(_keys.c[name] for name in ("id", "tenant", "hash", "rules", "models", "expires")),
        *(_keys.c[name] for name in ("origins", "routes", "former_hash", "former_expires")),
        *(_tenants.c.rules, _tenants.c.exhausted_until),
    )
    .join(_tenants, _tenants.c.id == _keys.c.tenant)
    .where(_keys.c.revoked.is_(None))
)


class AccountsVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies a state of tenants and keys.

    `number` is the number of the last change, and `token` is the random token of this change.
    """

    number: int = 0
    token: str = ""


class PrincipalChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the changes that bring a reader's principals to `version`, or to a later version."""

    version: AccountsVersion
    is_everything: bool
    """Whether `principals` are all principals. The reader must then drop its old principals."""
    keys: frozenset[KeyId] = frozenset()
    """The changed keys. The reader must drop its old principals of these keys."""
    principals: Iterator[tuple[str, Principal]]
    """Pairs of a secret's hash and the new principal that the secret belongs to. The pairs are read
    from the ledger during the iteration."""


class PrincipalReader:
    """Reads the principals of keys that are neither revoked nor expired. All calls block."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def version(self) -> AccountsVersion:
        """Return the present version. Every change of tenants or keys makes a new version."""
        with self._store.reading() as connection:
            return _version(connection)

    def changes(self, since: AccountsVersion | None) -> PrincipalChanges | None:
        """Return the changes since a version, or `None` if nothing has changed.

        If the ledger does not know all changes since that version, the result has all principals.
        The expiry of a key is not a change. Readers must therefore check for each key whether it
        has expired.
        """
        with self._store.reading() as connection:
            # The version is read first, so that the principals are at least as new as the version.
            version = _version(connection)
            if version == since:
                return None
            rows = [] if since is None else _rows_between(connection, since, version)
        if not rows:
            return PrincipalChanges(version=version, is_everything=True, principals=self._all())
        keys = {key for row in rows for key in _ids.decode(row.keys)}
        tenants = {str(row.tenant) for row in rows if row.tenant is not None}
        return PrincipalChanges(
            version=version,
            is_everything=False,
            keys=frozenset(map(KeyId, keys)),
            principals=self._named(keys, tenants),
        )

    def _all(self) -> Iterator[tuple[str, Principal]]:
        """Yield all principals, with one transaction for each page of keys.

        There may be a million keys, and one transaction over all of them would take long.
        """
        last: str | None = ""
        while last is not None:
            in_order = _keys.c.id > last
            last = yield from self._read(_valid.where(in_order).order_by(_keys.c.id).limit(_PAGE))

    def _named(self, keys: set[str], tenants: set[str]) -> Iterator[tuple[str, Principal]]:
        for column, names in ((_keys.c.id, keys), (_keys.c.tenant, tenants)):
            ordered = sorted(names)
            for start in range(0, len(ordered), _IDS_PER_QUERY):
                some = column.in_(ordered[start : start + _IDS_PER_QUERY])
                yield from self._read(_valid.where(some))

    def _read(self, query: Select[Any]) -> Generator[tuple[str, Principal], None, str | None]:
        """Yield the principals that a query finds, and return the id of the last key."""
        with self._store.reading() as connection:
            rows = connection.execute(query).all()
        now = self._store.clock()
        tenants: dict[str, str] = {}  # all keys of a tenant then share one string object
        for row in rows:
            # Unpacked, because reading the attributes would take as long as the rest of the loop.
            key, tenant, hash_, rules, models, expires, origins, routes, former, until, *own = row
            principal = Principal(
                tenant=TenantId(tenants.setdefault(tenant, tenant)),
                key=KeyId(key),
                tenant_rules=decode_rules(own[0]),
                key_rules=decode_rules(rules),
                models=None if models is None else _decode_names(models),
                expires=expires,
                origins=None if origins is None else _decode_names(origins),
                routes=None if routes is None else _decode_names(routes),
                exhausted_until=own[1],
            )
            if expires is None or expires > now:
                yield hash_, principal
            if until is not None and until > now:
                yield former, msgspec.structs.replace(principal, expires=until)
        return rows[-1].id if rows else None


def record_change(
    store: Store, connection: Connection, *, keys: Collection[str] = (), tenant: str | None = None
) -> None:
    """Record that the caller's transaction changes the keys `keys`, or all keys of `tenant`."""
    store.add_to(connection, schema.changes, [{"subject": _SUBJECT, "count": 1}], ["count"])
    number = _version(connection).number
    # After an incomplete restore of the ledger, rows with later numbers may exist.
    is_void = or_(_log.c.number <= number - KEPT_CHANGES, _log.c.number >= number)
    connection.execute(delete(_log).where(is_void))
    row: dict[str, Any] = {"number": number, "token": secrets.token_hex(8), "tenant": tenant}
    connection.execute(insert(_log), row | {"keys": msgspec.json.encode(list(keys)).decode()})


def _version(connection: Connection) -> AccountsVersion:
    changes = schema.changes.c
    query = (
        select(changes.count, _log.c.token)
        .outerjoin(_log, _log.c.number == changes.count)
        .where(changes.subject == _SUBJECT)
    )
    row = connection.execute(query).first()
    if row is None:
        return AccountsVersion()
    number, token = row
    return AccountsVersion(number=number, token=token or "")


def _rows_between(
    connection: Connection, since: AccountsVersion, until: AccountsVersion
) -> list[Row[Any]]:
    """Return the changes after `since` up to `until`, or an empty list if some are unknown."""
    is_between = _log.c.number.between(since.number, until.number)
    rows = connection.execute(select(_log).where(is_between).order_by(_log.c.number)).all()
    if len(rows) != until.number - since.number + 1 or len(rows) < 2:  # noqa: PLR2004
        return []
    if (rows[0].token, rows[-1].token) != (since.token, until.token):
        return []
    return list(rows[1:])
