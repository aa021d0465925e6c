"""Opens transactions on the ledger's database (SQLite or PostgreSQL), and translates its errors."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import sqlalchemy
from sqlalchemy import Connection, CursorResult, Engine, event, exc
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.pool import ConnectionPoolEntry

from sluicegate.gateway.errors import DependencyUnavailable, InvalidRequest
from sluicegate.gateway.ledger import migrations, schema
from sluicegate.gateway.ledger.migrations import LedgerEmpty
from sluicegate.gateway.ledger.postgresql import lift_limits, make_engine, parse_url
from sluicegate.gateway.ledger.reserve import DiskReserve, FileReserve
from sluicegate.gateway.ledger.usage_marks import MarksMissing
from sluicegate.gateway.ledger.write_priority import FileWritePriority, WritePriority

_WRITES: Final = "sluicegate_writes"
_FILE: Final = "sluicegate_file"
_SECOND: Final = 1_000_000_000
_RETRY: Final = 0.01
# Masks the primary error code in SQLite's extended error codes.
_PRIMARY: Final = 0xFF
_NO_ROOM: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
# The number of PostgreSQL's advisory lock that creations and migrations of tables take.
_CREATION: Final = int.from_bytes(b"sg:ledge")
_FILE_MISSING: Final = (
    "the ledger's file is missing: restore it from a backup, or create a new one with"
    " `sluicegate ledger init`"
)
# How PostgreSQL and SQLite report a table or a column that does not exist.
_MISSING_STATES: Final = ("42P01", "42703")
_MISSING_IN_SQLITE: Final = ("no such table", "no such column", "has no column named")


class Store:
    """Opens transactions, and migrates older tables before the first transaction.

    Several threads can use a store.

    Only `create` makes the tables of a new ledger. All other methods raise `LedgerEmpty` if there
    are no tables, even if the tables or the SQLite file disappear while the program runs.

    `clock` returns the Unix time in nanoseconds. A transaction waits at most `timeout` seconds for
    other transactions.
    """

    def __init__(self, url: str, *, clock: Callable[[], int], timeout: float = 10.0) -> None:
        self._url = parse_url(url)
        self._is_sqlite = self._url.get_backend_name() == "sqlite"
        self._timeout = timeout
        self._ready = threading.Event()
        self._preparing = threading.Lock()
        self._priority = WritePriority()
        self._reserve = DiskReserve()
        if self._is_sqlite and self._url.database:
            self._priority = FileWritePriority(Path(f"{self._url.database}-ahead"))
            self._reserve = FileReserve(Path(f"{self._url.database}-reserve"))
        self._engine = (
            self._sqlite_engine() if self._is_sqlite else make_engine(self._url, timeout=timeout)
        )
        self._is_closed = False
        event.listen(self._engine, "checkin", self._close_returned)
        self.clock = clock

    def create(self) -> None:
        """Create the ledger if the database has none. The call blocks.

        Raises:
            DependencyUnavailable: the database cannot be reached, or a restore from a backup has
                not finished.
        """
        with self._translated():
            if self._is_sqlite and self._url.database:
                path = Path(self._url.database)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()  # SQLite treats an empty file as a new database
            self._prepare(creates=True)

    def check(self) -> None:
        """Migrate older tables. The call blocks.

        Raises:
            LedgerEmpty: there are no tables.
            DependencyUnavailable: the database cannot be reached.
        """
        with self.reading():
            pass

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction for reading.

        Each statement sees one consistent state. But another transaction can commit between two
        statements, which then see different states.

        Raises:
            DependencyUnavailable: the database cannot be reached, or is busy for too long.
            InvalidRequest: a value does not fit its column.
        """
        with self._translated():
            self._prepare()
            with self._engine.begin() as connection:
                yield connection

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Open a transaction for reading. All statements see the same state.

        Raises:
            DependencyUnavailable: the database cannot be reached, or is busy for too long.
            InvalidRequest: a value does not fit its column.
        """
        with self.reading() as connection:
            if not self._is_sqlite:  # in SQLite, every transaction sees one state
                connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield connection

    @contextlib.contextmanager
    def writing(self, *, in_bulk: bool = False) -> Iterator[Connection]:
        """Open a transaction for writing. An exception in the block rolls the transaction back.

        With `in_bulk`, the transaction first waits for short transactions of other writers.

        Raises:
            DependencyUnavailable: the database cannot be reached, or is busy for too long.
            InvalidRequest: a value does not fit its column.
        """
        with self._translated():
            self._prepare()
            if in_bulk:
                self._priority.give_way()
            priority = contextlib.nullcontext() if in_bulk else self._priority.prioritized()
            with priority, self._engine.execution_options(**{_WRITES: True}).begin() as connection:
                yield connection
            self._reserve.keep()  # the write has succeeded, so a disk that was full has room again

    def insert_new(
        self, connection: Connection, table: sqlalchemy.Table, rows: list[dict[str, Any]]
    ) -> int:
        """Insert the rows whose primary keys are new; return the number of inserted rows."""
        if not rows:
            return 0
        result = self._insert(connection, table, rows, ())
        # PostgreSQL's drivers do not return the number of inserted rows.
        return result.rowcount if self._is_sqlite else len(result.all())

    def add_to(
        self,
        connection: Connection,
        table: sqlalchemy.Table,
        rows: list[dict[str, Any]],
        summed: Sequence[str],
    ) -> None:
        """Insert `rows`, or add them to existing rows with the same primary keys.

        If a row with the same primary key exists, its columns `summed` increase by the values of
        the new row. Its other columns stay.
        """
        if rows:
            self._insert(connection, table, rows, tuple(summed))

    def _insert(
        self,
        connection: Connection,
        table: sqlalchemy.Table,
        rows: list[dict[str, Any]],
        summed: tuple[str, ...],
    ) -> CursorResult[Any]:
        columns = tuple(rows[0])
        if self._is_sqlite:
            # SQLAlchemy is not used here, because it takes longer to bind a row than SQLite takes
            # to insert the row.
            statement, values_of = _insert_in_sqlite(table, columns, summed)
            return connection.exec_driver_sql(statement, list(map(values_of, rows)))
        # One statement with arrays costs as much as a statement for a single row.
        values = {name: [row[name] for row in rows] for name in columns}
        return connection.execute(_insert_in_postgresql(table, columns, summed), values)

    def lock_subject(self, connection: Connection, subject: str) -> int:
        """Lock the name `subject` until the transaction ends, and return the Unix time.

        The time is in nanoseconds. It is the time of the PostgreSQL server, or of `clock` for
        SQLite.
        """
        if not self._is_sqlite:  # there, a writer locks the whole database
            table = schema.changes
            self.insert_new(connection, table, [{"subject": subject, "count": 0}])
            row = sqlalchemy.select(table).where(table.c.subject == subject).with_for_update()
            connection.execute(row).one()
        return self._time_of(connection)

    def _time_of(self, connection: Connection) -> int:
        """Return the Unix time in nanoseconds, of the PostgreSQL server or of `clock`."""
        if self._is_sqlite:  # which has no clock of its own
            return self.clock()
        return int(_server_time(connection) * _SECOND)

    def server_time(self) -> float | None:
        """Return the database server's Unix time in seconds, or `None` for SQLite.

        Raises:
            DependencyUnavailable: the database does not answer.
        """
        if self._is_sqlite:
            return None
        with self.reading() as connection:
            return _server_time(connection)

    def close(self) -> None:
        """Close the connections. A connection in use is closed when its thread releases it."""
        self._is_closed = True
        self._engine.dispose()

    def _close_returned(self, _connection: object, entry: ConnectionPoolEntry) -> None:
        if self._is_closed:
            entry.close()

    def _sqlite_engine(self) -> Engine:
        timeout = self._timeout
        engine = sqlalchemy.create_engine(
            self._url, connect_args={"timeout": timeout}, pool_timeout=timeout
        )
        connected = partial(_on_connect, timeout=timeout, reserve=self._reserve)
        event.listen(engine, "connect", connected)
        if self._url.database:
            path = Path(self._url.database)
            event.listen(engine, "do_connect", partial(_without_creating, path))
            event.listen(engine, "checkout", partial(_check_file, path))
        event.listen(engine, "begin", _on_begin)
        return engine

    def _prepare(self, *, creates: bool = False) -> None:
        if self._ready.is_set():
            return
        if not self._preparing.acquire(timeout=self._timeout):
            raise exc.TimeoutError("another thread is still creating or migrating the tables")
        try:
            if not self._is_current(creates=creates):
                with self._migrating() as connection:
                    migrations.add_columns(connection)
                with self._migrating() as connection:
                    now = min(self._time_of(connection), self.clock())
                    migrations.migrate(
                        connection, insert_new=self.insert_new, now=now, creates=creates
                    )
            self._ready.set()
        finally:
            self._preparing.release()

    def _is_current(self, *, creates: bool) -> bool:
        """Return whether the tables need no migration.

        The check only reads, so that it works on a full disk or a read-only server.
        """
        try:
            with self._engine.begin() as connection:
                return migrations.is_current(connection)
        except LedgerEmpty:
            if not creates:
                raise
            return False

    @contextlib.contextmanager
    def _migrating(self) -> Iterator[Connection]:
        with self._engine.execution_options(**{_WRITES: True}).begin() as connection:
            if not self._is_sqlite:
                # The lock is needed because `IF NOT EXISTS` can fail if two processes create a
                # table at the same time.
                lift_limits(connection)
                connection.execute(
                    sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(_CREATION))
                )
            yield connection

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except exc.IntegrityError:
            # The database works, but it refused the values.
            raise
        except MarksMissing:
            self._ready.clear()  # the next call migrates the tables
            raise
        except (OverflowError, exc.DataError) as error:
            raise InvalidRequest(
                "a time, a number or a text is too large for the ledger"
            ) from error
        # The pool raises `InvalidRequestError` when connections end as soon as they are made.
        except (exc.DBAPIError, exc.TimeoutError, OSError, exc.InvalidRequestError) as error:
            reason = getattr(error, "orig", None) or error
            if _lacks_something(reason):
                # The ledger was emptied or replaced by an older one. The next call checks the
                # tables again.
                self._ready.clear()
                raise LedgerEmpty(migrations.EMPTY, retry_after=1.0) from error
            raise DependencyUnavailable(_unavailable(reason), retry_after=1.0) from error


def _server_time(connection: Connection) -> float:
    now = sqlalchemy.extract("epoch", sqlalchemy.func.clock_timestamp())
    return float(connection.execute(sqlalchemy.select(now)).scalar_one())


def to_nanoseconds(moment: datetime) -> int:
    """Return `moment` as a Unix time in nanoseconds.

    Raises:
        InvalidRequest: `moment` has no time zone.
    """
    if moment.tzinfo is None:
        raise InvalidRequest(f"the time `{moment.isoformat()}` needs a time zone, such as `Z`")
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * _SECOND + since.microseconds * 1_000


def to_datetime(nanoseconds: int) -> datetime:
    """Return a Unix time in nanoseconds as a UTC datetime with microseconds."""
    seconds, rest = divmod(nanoseconds, _SECOND)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1_000)


# Cached, because building a statement takes as long as executing it.
@cache
def _insert_in_sqlite(
    table: sqlalchemy.Table, columns: tuple[str, ...], summed: tuple[str, ...]
) -> tuple[str, Callable[[dict[str, Any]], Any]]:  # Any: the values of the columns
    new = sqlite.insert(table).values({name: sqlalchemy.bindparam(name) for name in columns})
    if summed:
        sums = {name: table.c[name] + new.excluded[name] for name in summed}
        new = new.on_conflict_do_update(index_elements=[*table.primary_key], set_=sums)
    else:
        new = new.on_conflict_do_nothing()
    # The values are in the order of the table's columns.
    names = [column.name for column in table.columns if column.name in columns]
    values_of = itemgetter(*names) if len(names) > 1 else lambda row: (row[names[0]],)
    return str(new.compile(dialect=sqlite.dialect())), values_of


@cache
def _insert_in_postgresql(
    table: sqlalchemy.Table, columns: tuple[str, ...], summed: tuple[str, ...]
) -> Any:  # the type of an insert that returns values is private
    arrays = (
        sqlalchemy.bindparam(name, type_=postgresql.ARRAY(_unbounded(table.c[name].type)))
        for name in columns
    )
    rows = sqlalchemy.select(*map(sqlalchemy.func.unnest, arrays))
    new = postgresql.insert(table).from_select(columns, rows)
    if summed:
        sums = {name: table.c[name] + new.excluded[name] for name in summed}
        return new.on_conflict_do_update(index_elements=[*table.primary_key], set_=sums)
    first, *_ = table.primary_key
    return new.on_conflict_do_nothing().returning(first)


def _unbounded(column: Any) -> Any:  # Any: of any type of value
    """Return the column's type without a length.

    A cast to a type with a length would silently shorten a long string. An insert must refuse such
    a string instead.
    """
    return sqlalchemy.Text() if isinstance(column, sqlalchemy.String) else column


def _lacks_something(reason: BaseException) -> bool:
    """Return whether the database reports that a table or a column does not exist."""
    if isinstance(reason, sqlite3.OperationalError):
        return any(words in str(reason) for words in _MISSING_IN_SQLITE)
    return getattr(reason, "sqlstate", "") in _MISSING_STATES


def _unavailable(reason: BaseException) -> str:
    """Return a message that says why the ledger cannot be used.

    The message contains the driver's own text only if SQLite cannot use the ledger's file.
    """
    code = getattr(reason, "sqlite_errorcode", 0) & _PRIMARY
    if code in _NO_ROOM:
        return f"the ledger's file cannot be used ({reason}): check whether its disk is full"
    return f"the ledger cannot be reached: {type(reason).__name__}"


def _without_creating(
    path: Path, _: object, entry: ConnectionPoolEntry, arguments: list[Any], options: dict[str, Any]
) -> None:
    """Make SQLite open the file at `path` without creating it.

    Raises:
        LedgerEmpty: the file does not exist.
    """
    # The file's identity is read before the file is opened. If another file replaces it in between,
    # the next checkout notices.
    entry.info[_FILE] = _identity(path)
    if entry.info[_FILE] is None:
        raise LedgerEmpty(_FILE_MISSING, retry_after=1.0)
    arguments[0] = f"{path.absolute().as_uri()}?mode=rw"
    options["uri"] = True


def _check_file(path: Path, _: object, entry: ConnectionPoolEntry, __: object) -> None:
    """Make the pool open the file anew if the file at `path` is missing or was replaced."""
    if entry.info.get(_FILE) != _identity(path):
        raise exc.InvalidatePoolError


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _on_connect(
    connection: sqlite3.Connection, _: object, *, timeout: float, reserve: DiskReserve
) -> None:
    """Configure a connection for concurrent processes and durable commits."""
    # Otherwise the driver begins a transaction at the first write, and not before the first read.
    connection.isolation_level = None
    cursor = connection.cursor()
    _enable_write_ahead(cursor, until=time.monotonic() + timeout, reserve=reserve)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
    reserve.keep()


def _enable_write_ahead(cursor: sqlite3.Cursor, *, until: float, reserve: DiskReserve) -> None:
    """Enable the write-ahead log; retry while another process creates the database.

    The function itself retries, because SQLite's own timeout does not apply to this statement. If
    the database is locked, the statement fails immediately. If the disk is full, the function frees
    the reserved space and tries once more.
    """
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & _PRIMARY
            if code in _NO_ROOM and reserve.release():
                continue
            # A full disk is no reason to wait, so the error is raised immediately.
            busy = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() >= until:
                raise
            time.sleep(_RETRY)
        else:
            return


def _on_begin(connection: Connection) -> None:
    """Begin a transaction. If it will write, take SQLite's write lock immediately.

    A transaction that first reads and then takes the lock can fail.
    """
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
