"""Records who changed what, and when."""

import msgspec
from sqlalchemy import Connection, insert, select

from gateway.ledger import schema
from gateway.ledger.store import Store, to_datetime
from gateway.ledger.types import AuditEntry


class Audit:
    """Appends to the list of changes, and reads it."""

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
        row = {"time": self._store.clock(), "actor": actor, "action": action, "subject": subject}
        row["detail"] = msgspec.json.encode(detail or {}).decode()
        connection.execute(insert(schema.audit), row)

    def entries(self, *, limit: int = 100, before: int | None = None) -> list[AuditEntry]:
        """Return the newest entries first, from before the number `before`."""
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
                for row in connection.execute(query)
            ]
