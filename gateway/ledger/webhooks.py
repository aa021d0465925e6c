"""Stores webhooks that are not delivered yet, and the time of each webhook's next attempt."""

import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.store import Store

_LOCK: Final = "webhooks"
_SECOND: Final = 1_000_000_000
_table: Final = schema.webhook_deliveries


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook to deliver. Every attempt sends the same id and the same body, `payload`."""

    id: str
    tenant: str
    payload: str
    attempts: int


class DeliveryStore:
    """Reads and changes deliveries. All calls block."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def take(self, *, seconds: float, limit: int = 20) -> list[Delivery]:
        """Return due deliveries. No other caller gets the same deliveries for `seconds` seconds."""
        with self._store.reading() as connection:
            is_due = _table.c.due <= self._store.clock()
            if connection.execute(select(_table.c.id).where(is_due).limit(1)).first() is None:
                return []
        with self._store.writing() as connection:
            now = self._store.lock_subject(connection, _LOCK)
            due = select(_table).where(_table.c.due <= now).order_by(_table.c.due).limit(limit)
            rows = connection.execute(due).all()
            own = _table.c.id.in_([row.id for row in rows])
            values = {"due": now + int(seconds * _SECOND), "attempts": _table.c.attempts + 1}
            connection.execute(update(_table).where(own).values(**values))
        return [
            Delivery(id=row.id, tenant=row.tenant, payload=row.payload, attempts=row.attempts + 1)
            for row in rows
        ]

    def retry(self, delivery: str, *, after: float) -> None:
        """Schedule the next attempt in `after` seconds."""
        due = self._store.clock() + int(after * _SECOND)
        with self._store.writing() as connection:
            connection.execute(update(_table).where(_table.c.id == delivery).values(due=due))

    def postpone(self, delivery: Delivery, *, after: float) -> None:
        """Schedule the next attempt in `after` seconds, without counting the present attempt."""
        values = {
            "due": self._store.clock() + int(after * _SECOND),
            "attempts": delivery.attempts - 1,
        }
        with self._store.writing() as connection:
            own = _table.c.id == delivery.id
            connection.execute(update(_table).where(own).values(**values))

    def remove(self, delivery: str) -> None:
        """Remove a delivery that has succeeded, or that is not to be tried again."""
        with self._store.writing() as connection:
            connection.execute(delete(_table).where(_table.c.id == delivery))


def add_delivery(
    connection: Connection, tenant: str, kind: str, data: Mapping[str, object], *, now: int
) -> None:
    """In the caller's transaction, queue a webhook for a tenant."""
    payload: dict[str, Any] = {
        "object": "event",
        "type": kind,
        "created_at": now // _SECOND,
        "data": data,
    }
    row = {"id": f"evt_{secrets.token_hex(12)}", "tenant": tenant}
    row["payload"] = msgspec.json.encode({"id": row["id"], **payload}).decode()
    times = {"created": now, "due": now, "attempts": 0}
    connection.execute(insert(_table), row | times)
