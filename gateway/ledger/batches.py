"""Stores batch jobs, their progress, and which process has the lease to run each of them."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, and_, delete, func, insert, or_, select, update

from sluicegate.gateway.errors import Conflict, NotFound, RateLimited
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.batch_types import BatchState, RequestBatch, StoredFile
from sluicegate.gateway.ledger.files import SECOND, add_file, check_bytes
from sluicegate.gateway.ledger.store import Store
from sluicegate.gateway.ledger.webhooks import add_delivery

_LOCK: Final = "batches"
_FILES: Final = "files"
_table: Final = schema.batches
_decode: Final = msgspec.json.Decoder(RequestBatch).decode


class LeaseLost(Exception):
    """The change was not made, because another process holds the lease of the batch job."""


class BatchStore:
    """Reads and changes batch jobs. All calls block.

    A process may run a batch job only while it holds the lease of the batch job. In the methods,
    `holder` is the name of this process. A restarted process keeps its name, and so takes over its
    former leases immediately.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def now(self) -> int:
        """Return the Unix time in seconds."""
        return self._store.clock() // SECOND

    def create(self, batch: RequestBatch, *, most_open: int, most_bytes: int) -> None:
        """Add a batch job, which waits until a process claims it.

        Raises:
            RateLimited: the tenant already has `most_open` open batch jobs, or more than
                `most_bytes` bytes of files.
            NotFound: the input file does not exist any more.
        """
        own = and_(_table.c.tenant == batch.tenant, _table.c.is_open == 1)
        file = and_(schema.files.c.id == batch.input_file, schema.files.c.is_stored == 1)
        with self._store.writing() as connection:
            self._store.lock_subject(connection, _FILES)
            if int(connection.scalar(select(func.count()).where(own)) or 0) >= most_open:
                raise RateLimited(
                    f"{most_open} batches are open, which is the limit: wait until one has ended"
                )
            check_bytes(connection, batch.tenant, most=most_bytes)
            if connection.execute(select(schema.files.c.id).where(file)).first() is None:
                raise NotFound(f"There is no file `{batch.input_file}`.")
            row: dict[str, Any] = {"id": batch.id, "tenant": batch.tenant}
            row |= {"input_file": batch.input_file, "created": self._store.clock()}
            row |= {"holder": "", "lease": 0, **_columns(batch)}
            connection.execute(insert(_table), row)

    def get(self, tenant: str, batch: str) -> RequestBatch:
        """Return a batch job.

        Raises:
            NotFound: the tenant has no such batch job.
        """
        with self._store.reading() as connection:
            return _decode(_row(connection, tenant, batch).state)

    def page(self, tenant: str, *, limit: int, after: str | None = None) -> list[RequestBatch]:
        """Return at most `limit` batch jobs older than the batch job `after`, newest first.

        Raises:
            NotFound: the batch job `after` does not exist.
        """
        created, own = _table.c.created, _table.c.id
        query = select(_table.c.state).where(_table.c.tenant == tenant)
        with self._store.reading() as connection:
            if after is not None:
                last = _row(connection, tenant, after)
                same = and_(created == last.created, own < last.id)
                query = query.where(or_(created < last.created, same))
            states = connection.scalars(query.order_by(created.desc(), own.desc()).limit(limit))
            return [_decode(state) for state in states]

    def cancel(self, tenant: str, batch: str) -> RequestBatch:
        """Set a batch job's state to `cancelling`. Its finished results are kept.

        Raises:
            NotFound: the tenant has no such batch job.
            Conflict: the batch job has ended.
        """
        with self._store.writing() as connection:
            found = _decode(_row(connection, tenant, batch, is_locked=True).state)
            if not found.status.is_open:
                raise Conflict(f"The batch has ended: it is `{found.status}`.")
            if found.status is BatchState.CANCELLING:
                return found
            changed = in_status(found, BatchState.CANCELLING, self.now())
            _write(connection, changed)
            return changed

    def claim(
        self, holder: str, *, seconds: float, running: Collection[RequestBatch], most: int
    ) -> RequestBatch | None:
        """Take the lease of an open batch job that no other process runs.

        `running` holds the batch jobs that the holder already runs. The tenant with the fewest
        batch jobs in `running` comes first. The holder takes the oldest batch job of this tenant.
        If `running` has `most` or more batch jobs, tenants with a batch job in `running` are left
        out.

        Returns:
            The batch job, or `None` if no batch job is available.
        """
        own = {batch.id for batch in running}
        tenants = [batch.tenant for batch in running]
        is_open = _table.c.is_open == 1
        with self._store.reading() as connection:
            if connection.execute(select(_table.c.id).where(is_open).limit(1)).first() is None:
                return None
        with self._store.writing() as connection:
            now = self._store.lock_subject(connection, _LOCK)
            is_free = or_(_table.c.lease <= now, _table.c.holder == holder)
            query = select(_table).where(is_open, is_free).order_by(_table.c.created)
            free = [row for row in connection.execute(query) if row.id not in own]
            if len(running) >= most:
                free = [row for row in free if row.tenant not in tenants]
            if not free:
                return None
            row = min(free, key=lambda each: (tenants.count(each.tenant), each.created))
            _lease(connection, [row.id], holder, now + int(seconds * SECOND))
            return _decode(row.state)

    def remove_ended(self, *, keep: int) -> None:
        """Delete ended batch jobs that were created more than `keep` seconds ago."""
        before = self._store.clock() - keep * SECOND
        with self._store.writing(in_bulk=True) as connection:
            is_old = and_(_table.c.is_open == 0, _table.c.created <= before)
            connection.execute(delete(_table).where(is_old))

    def renew(
        self, holder: str, batches: Sequence[str], *, seconds: float
    ) -> dict[str, BatchState]:
        """Renew the leases on `batches` that `holder` still has; return the jobs' states by id."""
        with self._store.writing() as connection:
            now = self._store.lock_subject(connection, _LOCK)
            own = and_(_table.c.id.in_(batches), _table.c.holder == holder)
            rows = connection.execute(select(_table.c.id, _table.c.state).where(own)).all()
            held = {str(row.id): _decode(row.state).status for row in rows}
            _lease(connection, list(held), holder, now + int(seconds * SECOND))
            return held

    def change(
        self, batch: str, holder: str, change: Callable[[RequestBatch], RequestBatch]
    ) -> RequestBatch:
        """Replace a stored batch job by the batch job that `change` returns for it.

        Raises:
            LeaseLost: `holder` does not have the lease.
        """
        with self._store.writing() as connection:
            changed = change(_held(connection, batch, holder))
            _write(connection, changed)
            return changed

    def end(
        self,
        batch: str,
        holder: str,
        change: Callable[[RequestBatch], RequestBatch],
        *,
        files: Sequence[StoredFile] = (),
    ) -> RequestBatch:
        """End a batch job: store the result of `change`, add `files`, and queue a webhook.

        Raises:
            LeaseLost: `holder` does not have the lease.
        """
        with self._store.writing() as connection:
            changed = change(_held(connection, batch, holder))
            for file in files:
                add_file(connection, file)
            _write(connection, changed)
            kind, data = f"batch.{changed.status.value}", {"id": changed.id}
            add_delivery(connection, changed.tenant, kind, data, now=self._store.clock())
            return changed


def in_status(batch: RequestBatch, status: BatchState, now: int) -> RequestBatch:
    """Return a copy of `batch` that entered the state `status` at the time `now`."""
    moments = batch.moments | {status.value: now}
    return msgspec.structs.replace(batch, status=status, moments=moments)


def _columns(batch: RequestBatch) -> dict[str, Any]:
    state = msgspec.json.encode(batch).decode()
    return {"is_open": int(batch.is_open), "state": state}


def _write(connection: Connection, batch: RequestBatch) -> None:
    connection.execute(update(_table).where(_table.c.id == batch.id).values(**_columns(batch)))


def _lease(connection: Connection, batches: Sequence[str], holder: str, until: int) -> None:
    own = _table.c.id.in_(batches)
    connection.execute(update(_table).where(own).values(holder=holder, lease=until))


def _held(connection: Connection, batch: str, holder: str) -> RequestBatch:
    own = and_(_table.c.id == batch, _table.c.holder == holder)
    row = connection.execute(select(_table.c.state).where(own).with_for_update()).first()
    if row is None:
        raise LeaseLost(batch)
    return _decode(row.state)


def _row(connection: Connection, tenant: str, batch: str, *, is_locked: bool = False) -> Row[Any]:
    query = select(_table).where(_table.c.id == batch, _table.c.tenant == tenant)
    row = connection.execute(query.with_for_update() if is_locked else query).first()
    if row is None:
        raise NotFound(f"There is no batch `{batch[:80]}`.")
    return row
