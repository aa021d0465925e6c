"""Lists dead letters (usage records that billing rejected), and records or discards them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, delete, func, select

from sluicegate.gateway.errors import InvalidRequest, NotFound
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.audit import Audit
from sluicegate.gateway.ledger.event_rows import is_valid
from sluicegate.gateway.ledger.recording import EventRecorder
from sluicegate.gateway.ledger.store import Store, to_datetime
from sluicegate.gateway.types import RequestEvent

_letters: Final = schema.dead_letters
_SHOWN: Final = ("number", "time", "log_id", "reason")


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a dead letter without its content."""

    number: int
    time: datetime
    """When billing stored the dead letter."""
    log_id: str
    """The event log that the record came from, or an empty string if it is unknown."""
    reason: str
    size: int
    """The size of the content in bytes."""


class DeadLetters:
    """Reads and removes dead letters. Each removal writes an audit entry. All calls block."""

    def __init__(self, store: Store, audit: Audit, recorder: EventRecorder) -> None:
        self._store = store
        self._audit = audit
        self._recorder = recorder

    def entries(self, *, limit: int = 100, before: int | None = None) -> list[DeadLetter]:
        """Return the newest `limit` dead letters whose numbers are below `before`, newest first."""
        size = func.length(_letters.c.payload).label("size")
        columns = [*(_letters.c[name] for name in _SHOWN), size]
        query = select(*columns).order_by(_letters.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(_letters.c.number < before)
        with self._store.reading() as connection:
            return [_letter(row) for row in connection.execute(query)]

    def count(self) -> int:
        """Return the number of dead letters."""
        return self._recorder.dead_letters()

    def payload(self, number: int) -> bytes:
        """Return the content of a dead letter as it was received.

        Raises:
            NotFound: the dead letter does not exist.
        """
        with self._store.reading() as connection:
            return bytes(_get(connection, number).payload)

    def count_events(self, number: int, events: Sequence[RequestEvent], *, actor: str) -> int:
        """Record the `events` of a dead letter and delete the dead letter, in one transaction.

        Events whose ids are already recorded are skipped.

        Returns:
            The number of requests in the newly recorded events.

        Raises:
            NotFound: the dead letter does not exist any more.
            InvalidRequest: a value in an event does not fit into the ledger.
        """
        if not all(map(is_valid, events)):
            raise InvalidRequest("the numbers of an event are out of range; nothing was counted")
        with self._store.writing() as connection:
            row = _get(connection, number, for_update=True)
            counted = self._recorder.insert(connection, events)
            detail: dict[str, object] = {"log": row.log_id, "counted": counted}
            self._remove(connection, number, actor, "dead_letter.replay", detail)
        return counted

    def remove_replayed(self, number: int, *, counted: int, actor: str) -> None:
        """Delete a dead letter after the caller has recorded its events.

        `counted` is the number of requests in these events. It appears in the audit log.
        """
        with self._store.writing() as connection:
            detail: dict[str, object] = {"counted": counted}
            self._remove(connection, number, actor, "dead_letter.replay", detail)

    def discard(self, number: int, *, actor: str) -> DeadLetter:
        """Delete a dead letter without recording its events; return its description.

        Raises:
            NotFound: the dead letter does not exist any more.
        """
        with self._store.writing() as connection:
            row = _get(connection, number, for_update=True)
            detail: dict[str, object] = {"log": row.log_id, "reason": row.reason}
            detail |= {"bytes": len(row.payload)}
            self._remove(connection, number, actor, "dead_letter.discard", detail)
        values = {name: getattr(row, name) for name in _SHOWN[2:]}
        return DeadLetter(
            number=number, time=to_datetime(row.time), size=len(row.payload), **values
        )

    def _remove(
        self,
        connection: Connection,
        number: int,
        actor: str,
        action: str,
        detail: dict[str, object],
    ) -> None:
        connection.execute(delete(_letters).where(_letters.c.number == number))
        self._audit.add(connection, actor=actor, action=action, subject=str(number), detail=detail)


def _get(connection: Connection, number: int, *, for_update: bool = False) -> Row[Any]:
    query = select(_letters).where(_letters.c.number == number)
    row = connection.execute(query.with_for_update() if for_update else query).first()
    if row is None:
        raise NotFound(
            f"there is no dead letter `{number}`; it may have been counted or discarded already"
        )
    return row


def _letter(row: Row[Any]) -> DeadLetter:
    return DeadLetter(
        number=row.number,
        time=to_datetime(row.time),
        log_id=row.log_id,
        reason=row.reason,
        size=row.size,
    )
