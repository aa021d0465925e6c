"""Connects to PostgreSQL with time limits, for servers that are cut off, frozen or unsuitable."""

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

# Options of libpq, in seconds, the last in milliseconds: a connection that is cut off ends after
# about ten seconds, while connecting, sending or waiting.
_CONNECTING: Final = {
    "connect_timeout": 3,
    "keepalives": 1,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# The same on the server: it releases the locks of a client that is cut off.
_SESSION: Final = {
    "idle_in_transaction_session_timeout": "15s",
    "tcp_keepalives_idle": "10s",
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "2",
}
_TIMER: Final = "sluicegate_timer"
_BEYOND_STATEMENT: Final = 2.0


def make_engine(url: URL, *, timeout: float) -> Engine:
    """Return an engine none of whose statements takes longer than `timeout` seconds.

    The server cancels longer ones. If it does not, the connection is shut down.
    """
    # Options in the URL take precedence.
    options = {name: value for name, value in _CONNECTING.items() if name not in url.query}
    engine = sqlalchemy.create_engine(url, pool_timeout=timeout, connect_args=options)
    event.listen(engine, "do_connect", partial(_connect, timeout=timeout))
    event.listen(engine, "checkout", partial(_on_checkout, longest=timeout + _BEYOND_STATEMENT))
    event.listen(engine, "checkin", _on_checkin)
    return engine


def lift_limits(connection: Connection) -> None:
    """Remove the time limits of this transaction, which may change large tables."""
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    _stop(connection.connection)


def _connect(
    dialect: Dialect,
    _: ConnectionPoolEntry,
    arguments: list[Any],  # Any: the driver's, as what it returns
    options: dict[str, Any],
    *,
    timeout: float,
) -> Any:
    """Connect.

    Raises:
        ConfigurationError: the database has no text encoding.
    """
    connection: Any = dialect.connect(*arguments, **options)
    try:
        _check_encoding(connection.info.parameter_status("server_encoding"))
        with connection.cursor() as cursor:
            cursor.execute(f"SET statement_timeout = {int(timeout * 1000)}")
            for name, value in _SESSION.items():
                cursor.execute(f"SET {name} = '{value}'")
        connection.commit()
    except BaseException:  # the connection is unusable, whatever the error
        connection.close()
        raise
    return connection


def _check_encoding(encoding: str) -> None:
    if encoding == "SQL_ASCII":
        raise ConfigurationError(
            "the ledger's database has the encoding SQL_ASCII, which is unsuitable: create one"
            " with `CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0`"
        )


def _on_checkout(
    connection: Any,  # Any: the driver's
    entry: ConnectionPoolEntry,
    _: PoolProxiedConnection,
    *,
    longest: float,
) -> None:
    """Start the timer that bounds the use of the connection, and check that it is alive."""
    timer = Timer(longest, _shut_down, args=(connection,))
    timer.daemon = True
    if entry.record_info is not None:
        entry.record_info[_TIMER] = timer
    timer.start()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        connection.rollback()
    except Exception as error:  # of any driver: the pool makes a new connection
        timer.cancel()
        raise exc.DisconnectionError from error


def _on_checkin(_: object, entry: ConnectionPoolEntry) -> None:
    _stop(entry)


def _stop(entry: ConnectionPoolEntry | PoolProxiedConnection) -> None:
    timer: Timer | None = (entry.record_info or {}).pop(_TIMER, None)
    if timer is not None:
        timer.cancel()


def _shut_down(connection: Any) -> None:
    """Shut the socket down, which ends any wait for the server."""
    # The connection may have ended meanwhile.
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)
