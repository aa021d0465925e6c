"""Stores the names, sizes and times of tenants' files. The contents are in the file storage."""

from typing import Any, Final

from sqlalchemy import Connection, Row, and_, delete, func, insert, or_, select, update

from sluicegate.gateway.errors import Conflict, NotFound, RateLimited
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.batch_types import StoredFile
from sluicegate.gateway.ledger.store import Store

SECOND: Final = 1_000_000_000
_LOCK: Final = "files"
_UPLOAD_TIME: Final = 3_600
"""Seconds after which an unfinished upload is removed."""
_table: Final = schema.files
_batches: Final = schema.batches


class FileStore:
    """Reads and changes the list of files. All calls block."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def begin(self, file: StoredFile, *, most: int, most_bytes: int) -> None:
        """Add a file whose upload begins. It stays invisible until `finish` is called.

        Raises:
            RateLimited: the tenant would exceed `most` files or `most_bytes` bytes.
        """
        with self._store.writing() as connection:
            self._store.lock_subject(connection, _LOCK)
            own = select(func.count()).where(_table.c.tenant == file.tenant)
            if int(connection.scalar(own) or 0) >= most:
                raise RateLimited(f"You have {most} files, which is the limit. Delete some.")
            check_bytes(connection, file.tenant, most=most_bytes, more=file.size)
            add_file(connection, file, is_stored=False)

    def finish(self, file: str, *, size: int, expires: int) -> None:
        """Make an uploaded file visible. `expires` is a Unix time in seconds."""
        with self._store.writing() as connection:
            values = {"size": size, "expires": expires * SECOND, "is_stored": 1}
            connection.execute(update(_table).where(_table.c.id == file).values(**values))

    def get(self, tenant: str, file: str) -> StoredFile:
        """Return a file.

        Raises:
            NotFound: the tenant has no such file.
        """
        with self._store.reading() as connection:
            return _get(connection, tenant, file)

    def page(
        self,
        tenant: str,
        *,
        limit: int,
        after: str | None = None,
        purpose: str | None = None,
        is_ascending: bool = False,
    ) -> list[StoredFile]:
        """Return at most `limit` files that follow the file `after` in the list.

        The list begins with the newest file, or with the oldest one if `is_ascending` is set.

        Raises:
            NotFound: the file `after` does not exist.
        """
        place = (_table.c.created, _table.c.id)
        query = select(_table).where(_table.c.tenant == tenant, _table.c.is_stored == 1)
        if purpose is not None:
            query = query.where(_table.c.purpose == purpose)
        with self._store.reading() as connection:
            if after is not None:
                last = _row(connection, tenant, after)
                query = query.where(_beyond(last, is_ascending=is_ascending))
            order = [c.asc() if is_ascending else c.desc() for c in place]
            rows = connection.execute(query.order_by(*order).limit(limit))
            return [_file(row) for row in rows]

    def hide(self, tenant: str, file: str) -> None:
        """Hide a file before the caller deletes its content and calls `forget`.

        If the caller cannot delete the content, `expired` later returns the file, so that the
        deletion is tried again.

        Raises:
            NotFound: the tenant has no such file.
            Conflict: a batch job reads the file.
        """
        with self._store.writing() as connection:
            self._store.lock_subject(connection, _LOCK)
            _get(connection, tenant, file)
            reading = select(_batches.c.id).where(
                _batches.c.input_file == file, _batches.c.is_open == 1
            )
            if (batch := connection.scalar(reading)) is not None:
                raise Conflict(f"The batch `{batch}` reads this file: cancel it first.")
            connection.execute(update(_table).where(_table.c.id == file).values(is_stored=0))

    def expired(self, *, limit: int = 100) -> list[str]:
        """Return the ids of files whose content should be deleted.

        These are expired files that no batch job reads, and files that have been invisible for an
        hour because their upload or their deletion never finished.
        """
        now = self._store.clock()
        used = select(_batches.c.input_file).where(_batches.c.is_open == 1)
        is_over = and_(_table.c.expires <= now, _table.c.id.not_in(used))
        was_left = and_(_table.c.is_stored == 0, _table.c.created <= now - _UPLOAD_TIME * SECOND)
        with self._store.reading() as connection:
            query = select(_table.c.id).where(or_(is_over, was_left)).limit(limit)
            return [str(file) for file in connection.scalars(query)]

    def forget(self, file: str) -> None:
        """Remove a file from the list after its content was deleted."""
        with self._store.writing() as connection:
            connection.execute(delete(_table).where(_table.c.id == file))


def check_bytes(connection: Connection, tenant: str, *, most: int, more: int = 0) -> None:
    """In the caller's transaction, check that a tenant may store `more` additional bytes.

    Raises:
        RateLimited: the tenant's files would exceed `most` bytes.
    """
    own = select(func.sum(_table.c.size)).where(_table.c.tenant == tenant)
    if int(connection.scalar(own) or 0) + more > most:
        raise RateLimited(f"Your files may have at most {most} bytes together. Delete some.")


def add_file(connection: Connection, file: StoredFile, *, is_stored: bool = True) -> None:
    """In the caller's transaction, add a file to the list."""
    row = {
        "id": file.id,
        "tenant": file.tenant,
        "purpose": file.purpose,
        "filename": file.filename,
        "size": file.size,
        "created": file.created * SECOND,
        "expires": file.expires * SECOND,
        "is_stored": int(is_stored),
    }
    connection.execute(insert(_table), row)


def _get(connection: Connection, tenant: str, file: str) -> StoredFile:
    return _file(_row(connection, tenant, file))


def _row(connection: Connection, tenant: str, file: str) -> Row[Any]:
    same = and_(_table.c.id == file, _table.c.tenant == tenant, _table.c.is_stored == 1)
    row = connection.execute(select(_table).where(same)).first()
    if row is None:
        raise NotFound(f"There is no file `{file[:80]}`.")
    return row


def _beyond(last: Row[Any], *, is_ascending: bool) -> Any:  # an expression of SQLAlchemy
    created, own = _table.c.created, _table.c.id
    if is_ascending:
        return or_(created > last.created, and_(created == last.created, own > last.id))
    return or_(created < last.created, and_(created == last.created, own < last.id))


def _file(row: Row[Any]) -> StoredFile:
    return StoredFile(
        id=row.id,
        tenant=row.tenant,
        purpose=row.purpose,
        filename=row.filename,
        size=row.size,
        created=row.created // SECOND,
        expires=row.expires // SECOND,
    )
