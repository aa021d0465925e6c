"""Records who changed what, and when."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, Connection, func, insert, or_, select

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.store import Store, to_datetime, to_nanoseconds
from sluicegate.gateway.ledger.types import AuditEntry, AuditFilter, AuditNames

_RECENT: Final = 10_000


EVERYTHING: Final = AuditFilter()


class Audit:
    """Appends audit entries and reads them. All calls block."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(
        self, actor: str, action: str, subject: str, detail: dict[str, object] | None = None
    ) -> None:
        """Add an entry in a transaction of its own."""
        with self._store.writing() as connection:
            self.add(connection, actor=actor, action=action, subject=subject, detail=detail)

    def add(
        self,
        connection: Connection,
        *,
        actor: str,
        action: str,
        subject: str,
        detail: dict[str, object] | None = None,
    ) -> None:
        """Add an entry in the transaction that makes the change."""
        self.add_all(connection, actor, action, [(subject, detail or {})])

    def add_all(
        self,
        connection: Connection,
        actor: str,
        action: str,
        changes: Sequence[tuple[str, dict[str, object]]],
    ) -> None:
        """Add an entry for each subject and its details, in the caller's transaction."""
        own = {"time": self._store.clock(), "actor": actor, "action": action}
        rows = [
            own | {"subject": subject, "detail": msgspec.json.encode(detail).decode()}
            for subject, detail in changes
        ]
        if rows:
            connection.execute(insert(schema.audit), rows)

    def entries(
        self, *, limit: int = 100, before: int | None = None, of: AuditFilter = EVERYTHING
    ) -> list[AuditEntry]:
        """Return at most `limit` entries older than the entry `before`, the newest first."""
        table = schema.audit
        query = select(table).order_by(table.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(table.c.number < before)
        with self._store.reading() as connection:
            return [
                AuditEntry(
                    number=row.number,
                    time=to_datetime(row.time),
                    actor=row.actor,
                    action=row.action,
                    subject=row.subject,
                    detail=msgspec.json.decode(row.detail),
                )
                for row in connection.execute(query.where(*_conditions(of)))
            ]

    def names(self) -> AuditNames:
        """Return the names in the latest 10,000 changes."""
        table = schema.audit.c
        newest = select(func.max(table.number)).scalar_subquery()
        query = select(table.actor, table.action).distinct().where(table.number > newest - _RECENT)
        with self._store.reading() as connection:
            rows = connection.execute(query).all()
        return AuditNames(
            actors=sorted({row.actor for row in rows}),
            kinds=sorted({kind for row in rows for kind in _kinds_of(row.action)}),
        )


def _kinds_of(action: str) -> Iterator[str]:
    """Yield the kinds of an action, such as `key` and `key.revoke`."""
    return accumulate(action.split("."), "{}.{}".format)


def _conditions(of: AuditFilter) -> Iterator[ColumnElement[bool]]:
    table = schema.audit
    if of.actor:
        yield table.c.actor == of.actor
    if of.kind:
        below = table.c.action.startswith(f"{of.kind}.", autoescape=True)
        yield or_(table.c.action == of.kind, below)
    if of.subject:
        yield table.c.subject == of.subject
    if of.since is not None:
        yield table.c.time >= to_nanoseconds(of.since)
    if of.until is not None:
        yield table.c.time < to_nanoseconds(of.until)
