"""SQLite in a simulation: waits for locks take virtual time, and killed processes hold none.

A database that is on no simulated disk belongs to another machine, and may be out of reach.
"""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn
from weakref import ref

from typing_extensions import override

from testing.simulation.clock import sleep
from testing.simulation.disk import Disk
from testing.simulation.scheduler import here

_real_connect: Final = sqlite3.connect
_WRITES: Final = ("INSERT", "UPDATE", "DELETE", "REPLACE", "CREATE", "ALTER", "BEGIN IMMEDIATE")
_POLL: Final = 0.002
_PRIMARY: Final = 0xFF
_CLOSED: Final = "Cannot operate on a closed database."
"""SQLAlchemy knows a broken connection by this text of the driver."""


class _Cursor(sqlite3.Cursor):
    @override
    def execute(self, sql: str, *args: Any) -> Any:
        run = super().execute
        return _patiently(self.connection, sql, lambda: run(sql, *args))

    @override
    def executemany(self, sql: str, *args: Any) -> Any:
        run = super().executemany
        return _patiently(self.connection, sql, lambda: run(sql, *args))

    @override
    def executescript(self, sql_script: str) -> Any:
        run = super().executescript
        return _patiently(self.connection, sql_script, lambda: run(sql_script))


class _Connection(sqlite3.Connection):
    patience = 0.0
    disk: Disk | None = None
    """The disk of the running machine, if it has the database."""
    machine: Any = None
    """The machine, if another one has the database."""
    losses = 0
    """How often the machine had lost its databases when the connection was opened."""

    def is_lost(self) -> bool:
        """Return whether the machine does not reach the database, or did not since `connect`."""
        machine = self.machine
        return machine is not None and (
            machine.database_timeout is not None or machine.database_losses != self.losses
        )

    @override
    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or _Cursor)

    @override
    def execute(self, sql: str, *args: Any) -> Any:
        return self.cursor().execute(sql, *args)

    @override
    def executemany(self, sql: str, *args: Any) -> Any:
        return self.cursor().executemany(sql, *args)

    @override
    def executescript(self, sql_script: str) -> Any:
        return self.cursor().executescript(sql_script)

    @override
    def commit(self) -> None:
        strand, machine, is_commit = here.strand, self.machine, self.in_transaction
        if strand is not None and is_commit:
            strand.process.count_call()
        _patiently(self, "COMMIT", super().commit)
        if machine is not None and is_commit and machine.commit_timeout is not None:
            _break(self, machine.commit_timeout)


def _patiently(connection: Any, sql: str, run: Callable[[], Any]) -> Any:
    """Run a statement, and wait as long as the connection's timeout for locks of others."""
    strand, scheduler = here.strand, here.scheduler
    if strand is None or scheduler is None:
        return run()
    disk = connection.disk
    if (
        disk is not None
        and (disk.is_full or disk.is_broken)
        and sql.lstrip().upper().startswith(_WRITES)
    ):
        raise _error("database or disk is full", sqlite3.SQLITE_FULL)
    until = scheduler.now + connection.patience
    while True:
        if connection.is_lost():
            _break(connection, connection.machine.database_timeout or 0.0)
        try:
            return run()
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & _PRIMARY == sqlite3.SQLITE_BUSY
            is_stale = error.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT
            if not is_busy or is_stale or scheduler.now >= until:
                raise
        sleep(_POLL)


def _break(connection: Any, timeout: float) -> NoReturn:
    """Fail as a connection to a server that broke. The server ends its transaction."""
    connection.close()
    sleep(timeout)
    raise sqlite3.ProgrammingError(_CLOSED)


def _error(text: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def connect(database: Any, timeout: float = 5.0, **options: Any) -> Any:
    """Connect as `sqlite3.connect` does."""
    strand = here.strand
    if strand is None:
        return _real_connect(database, timeout, **options)
    process = strand.process
    options.setdefault("factory", _Connection)
    made = _real_connect(database, 0.0, **options)
    if isinstance(made, _Connection):
        made.patience = timeout
    disk, path = process.machine.disk, str(database)
    has_database = not options.get("uri") and disk.has(path)
    if has_database:
        disk.databases.add(str(Path(path).absolute()))
    if isinstance(made, _Connection):
        machine = process.machine
        made.disk, made.machine = (disk, None) if has_database else (None, machine)
        made.losses = machine.database_losses
    process.databases.append(ref(made))
    return made


def close_all(connections: "list[ref[sqlite3.Connection]]") -> None:
    """Close the connections of a process that was killed: their transactions are rolled back."""
    for each in connections:
        connection = each()
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()
