"""Connections to PostgreSQL that end in time when the server is cut off, frozen or unsuitable."""

import contextlib
import os
import socket
from functools import partial
from threading import Timer
from typing import Any, Final

import sqlalchemy
from sqlalchemy import URL, Connection, Dialect, Engine, event, exc
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from gateway.errors import ConfigurationError

# Of libpq, in seconds and the last one in milliseconds: a connection whose other end is cut off
# ends after about ten seconds, whether it is being made, has sent something or waits.
_CONNECTING: Final = {
    "connect_timeout": 3,
    "keepalives": 1,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# The server's side of it: what a client that is cut off has locked is free again.
_SESSION: Final = {
    "idle_in_transaction_session_timeout": "15s",
    "tcp_keepalives_idle": "10s",
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "2",
}
_TIMER: Final = "sluicegate_timer"
_BEYOND_STATEMENT: Final = 2.0


def make_engine(url: URL, *, patience: float) -> Engine:
    """Return an engine none of whose statements takes longer than `patience` seconds.

    The server ends those that do. Where it does not even do that, the connection is shut down.
    """
    # What the URL says comes first.
    options = {name: value for name, value in _CONNECTING.items() if name not in url.query}
    engine = sqlalchemy.create_engine(url, pool_timeout=patience, connect_args=options)
    event.listen(engine, "do_connect", partial(_connect, patience=patience))
    event.listen(engine, "checkout", partial(_checked_out, longest=patience + _BEYOND_STATEMENT))
    event.listen(engine, "checkin", _checked_in)
    return engine


def lift_limits(connection: Connection) -> None:
    """Let this transaction take as long as it needs, such as one that changes large tables."""
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    _stop(connection.connection)


def _connect(
    dialect: Dialect,
    _: ConnectionPoolEntry,
    arguments: list[Any],  # Any: the driver's, as what it returns
    options: dict[str, Any],
    *,
    patience: float,
) -> Any:
    """Connect.

    Raises:
        ConfigurationError: the database does not keep text as text.
    """
    connection: Any = dialect.connect(*arguments, **options)
    try:
        _check_encoding(connection.info.parameter_status("server_encoding"))
        with connection.cursor() as cursor:
            cursor.execute(f"SET statement_timeout = {int(patience * 1000)}")
            for name, value in _SESSION.items():
                cursor.execute(f"SET {name} = '{value}'")
        connection.commit()
    except BaseException:  # whatever it was, nobody is given the connection
        connection.close()
        raise
    return connection


def _check_encoding(encoding: str) -> None:
    if encoding == "SQL_ASCII":
        raise ConfigurationError(
            "the ledger's database has the encoding SQL_ASCII, which knows no text: make one with"
            " `CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0`"
        )


def _checked_out(
    connection: Any,  # Any: the driver's
    entry: ConnectionPoolEntry,
    _: PoolProxiedConnection,
    *,
    longest: float,
) -> None:
    """Bound what the connection is used for, and find out whether it still lives."""
    timer = Timer(longest, _shut_down, args=(connection,))
    timer.daemon = True
    if entry.record_info is not None:
        entry.record_info[_TIMER] = timer
    timer.start()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        connection.rollback()
    except Exception as error:  # of whichever driver: the pool makes a new one
        timer.cancel()
        raise exc.DisconnectionError from error


def _checked_in(_: object, entry: ConnectionPoolEntry) -> None:
    _stop(entry)


def _stop(entry: ConnectionPoolEntry | PoolProxiedConnection) -> None:
    timer: Timer | None = (entry.record_info or {}).pop(_TIMER, None)
    if timer is not None:
        timer.cancel()


def _shut_down(connection: Any) -> None:
    """Make whoever waits for the server stop waiting."""
    # It may have ended meanwhile.
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)
