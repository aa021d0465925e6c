"""Stores operators, their roles, and the hashes of their keys' secrets."""

import re
from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, func, select, update

from sluicegate.gateway.errors import Conflict, InvalidRequest, NotFound
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.accounts import former_secret
from sluicegate.gateway.ledger.audit import Audit
from sluicegate.gateway.ledger.store import Store, to_datetime, to_nanoseconds
from sluicegate.gateway.ledger.types import OperatorAccount

MAX_OPERATORS: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_RESERVED: Final = frozenset({"admin", "metrics", "start", "system"})
_SECOND: Final = 1_000_000_000
_table: Final = schema.operators
_roles: Final = msgspec.json.Decoder(tuple[str, ...])


class ValidOperatorKey(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the hash of a valid secret of an operator.

    The secret expires at `expires`, a Unix time in nanoseconds. `None` means never.
    """

    key_hash: str
    operator: str
    roles: tuple[str, ...]
    expires: int | None


class OperatorStore:
    """Reads and changes operators. All calls block.

    `actor` is the person or program that makes a change. The audit log names it.
    """

    def __init__(self, store: Store, audit: Audit) -> None:
        self._store = store
        self._audit = audit

    def create(
        self,
        name: str,
        *,
        roles: Collection[str],
        key_hash: str,
        expires: datetime | None = None,
        actor: str = "system",
    ) -> OperatorAccount:
        """Create an operator with a key; `key_hash` is the hash of the key's secret.

        Raises:
            Conflict: an operator has or had this name, or there are too many operators.
            InvalidRequest: the name is invalid, or `expires` is in the past.
        """
        row = self._row(name, roles, key_hash, expires)
        with self._store.writing() as connection:
            self._check_count(connection)
            if not self._store.insert_new(connection, _table, [row]):
                raise Conflict(
                    f"there is, or was, an operator `{name}`: use another name, so that audit"
                    " entries stay unambiguous"
                )
            self._audit.add(
                connection,
                actor=actor,
                action="operator.create",
                subject=name,
                detail={"roles": sorted(set(roles))},
            )
            return _account(_get(connection, name))

    def accounts(self) -> list[OperatorAccount]:
        """Return all operators, including revoked ones, sorted by name."""
        with self._store.reading() as connection:
            rows = connection.execute(select(_table).order_by(_table.c.name))
            return [_account(row) for row in rows]

    def valid_keys(self) -> list[ValidOperatorKey]:
        """Return the hashes of all operators' secrets that are neither revoked nor expired."""
        query = select(_table).where(_table.c.revoked.is_(None)).limit(MAX_OPERATORS)
        with self._store.reading() as connection:
            rows = connection.execute(query).all()
        now = self._store.clock()
        found = [key for row in rows for key in _keys_of(row)]
        return [key for key in found if key.expires is None or key.expires > now]

    def set_roles(
        self, name: str, roles: Collection[str], *, actor: str = "system"
    ) -> OperatorAccount:
        """Replace the roles of an operator.

        Raises:
            NotFound: the operator does not exist.
            Conflict: the operator is revoked.
        """
        values: dict[str, object] = {"roles": _encode(roles)}
        return self._change(name, values, actor, "operator.roles", {"roles": sorted(set(roles))})

    def rotate(
        self, name: str, *, key_hash: str, keep: float, actor: str = "system"
    ) -> OperatorAccount:
        """Give an operator a new secret, whose hash is `key_hash`.

        The former secret stays valid for `keep` seconds, but not beyond the key's expiry.

        Raises:
            NotFound: the operator does not exist.
            Conflict: the operator is revoked.
        """
        with self._store.writing() as connection:
            before = _get(connection, name, for_update=True)
            _check_active(before)
            now = self._store.clock()
            until = now + int(keep * _SECOND)
            if before.expires is not None:
                until = min(until, before.expires)
            values = {"hash": key_hash} | former_secret(before.hash, until, now)
            connection.execute(update(_table).where(_table.c.name == name).values(**values))
            self._audit.add(connection, actor=actor, action="operator.rotate", subject=name)
            rotated = _account(_get(connection, name))
        return msgspec.structs.replace(rotated, former_expires=to_datetime(until))

    def revoke(self, name: str, *, actor: str = "system") -> OperatorAccount:
        """Revoke an operator for ever. Revoking a revoked operator changes nothing.

        Raises:
            NotFound: the operator does not exist.
        """
        with self._store.reading() as connection:
            before = _get(connection, name)
        if before.revoked is not None:
            return _account(before)
        return self._change(name, {"revoked": self._store.clock()}, actor, "operator.revoke", {})

    def _change(
        self,
        name: str,
        values: dict[str, object],
        actor: str,
        action: str,
        detail: dict[str, object],
    ) -> OperatorAccount:
        with self._store.writing() as connection:
            _check_active(_get(connection, name, for_update=True))
            connection.execute(update(_table).where(_table.c.name == name).values(**values))
            self._audit.add(connection, actor=actor, action=action, subject=name, detail=detail)
            return _account(_get(connection, name))

    def _check_count(self, connection: Connection) -> None:
        active = select(func.count()).select_from(_table).where(_table.c.revoked.is_(None))
        if (connection.scalar(active) or 0) >= MAX_OPERATORS:
            raise Conflict(f"there are {MAX_OPERATORS} operators already; revoke some")

    def _row(
        self, name: str, roles: Collection[str], key_hash: str, expires: datetime | None
    ) -> dict[str, Any]:
        if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
            raise InvalidRequest(
                f"`{name[:80]}` cannot name an operator: use up to 64 letters, digits, `_`, `.`,"
                f" `@`, `-`; the names `{'`, `'.join(sorted(_RESERVED))}` are reserved"
            )
        now = self._store.clock()
        ends = None if expires is None else to_nanoseconds(expires)
        if expires is not None and ends is not None and ends <= now:
            raise InvalidRequest(
                f"`expires` is in the past: {expires.isoformat()}; name a later time"
            )
        row: dict[str, Any] = {"name": name, "roles": _encode(roles), "hash": key_hash}
        return row | {"created": now, "expires": ends}


def _get(connection: Connection, name: str, *, for_update: bool = False) -> Row[Any]:
    query = select(_table).where(_table.c.name == name)
    row = connection.execute(query.with_for_update() if for_update else query).first()
    if row is None:
        raise NotFound(f"there is no operator `{name[:80]}`")
    return row


def _check_active(row: Row[Any]) -> None:
    if row.revoked is not None:
        raise Conflict(f"the operator `{row.name}` is revoked; create another")


def _encode(roles: Collection[str]) -> str:
    return msgspec.json.encode(sorted(set(roles))).decode()


def _keys_of(row: Row[Any]) -> list[ValidOperatorKey]:
    """Return an operator's newest secret, and the former secret if there is one."""
    roles = _roles.decode(row.roles)
    secrets = [(row.hash, row.expires)]
    if row.former_hash is not None:
        secrets.append((row.former_hash, row.former_expires or 0))
    return [
        ValidOperatorKey(key_hash=hash_, operator=row.name, roles=roles, expires=expires)
        for hash_, expires in secrets
    ]


def _account(row: Row[Any]) -> OperatorAccount:
    return OperatorAccount(
        name=row.name,
        roles=_roles.decode(row.roles),
        created=to_datetime(row.created),
        expires=None if row.expires is None else to_datetime(row.expires),
        revoked=None if row.revoked is None else to_datetime(row.revoked),
        former_expires=None if row.former_expires is None else to_datetime(row.former_expires),
    )
