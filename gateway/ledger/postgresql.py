"""Connects to PostgreSQL with time limits, for servers that are unreachable or frozen."""

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from functools import partial
from threading import Timer
from typing import Any, Final

import sqlalchemy
from sqlalchemy import URL, Connection, Dialect, Engine, ExceptionContext, event, exc, make_url
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from gateway.errors import ConfigurationError

# Options of libpq in seconds; `tcp_user_timeout` is in milliseconds. With them, a connection that
# the network has cut off fails after about ten seconds.
_CONNECTING: Final = {
    "connect_timeout": 3,
    "keepalives": 1,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_SESSION: Final = {
    # PostgreSQL overestimates the cost of the ledger's queries and would compile their plans, which
    # takes longer than to run them.
    "jit": "off",
    # The same timeouts for the server, so that it releases the locks of a client that is cut off.
    "idle_in_transaction_session_timeout": "15s",
    "tcp_keepalives_idle": "10s",
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "2",
}
CONNECTIONS: Final = 5
"""The most connections of a process. A further caller waits for one to be returned."""
_TIMER: Final = "sluicegate_timer"
_BEYOND_STATEMENT: Final = 2.0
_LONGEST_CHECK: Final = 3.0
"""Seconds in which a server must answer the check of a connection. A frozen or unreachable server
must not delay the switch to its successor."""
_SEVERAL_HOSTS: Final = re.compile(
    r"(?P<begin>postgresql(?:\+\w+)?://"
    # User and password, split as SQLAlchemy does: the password may contain `,`, `/` and `?`.
    r"(?:[^:/]*(?::[^@]*)?@|(?![^:/]*(?::[^@]*)?@)))"
    r"(?P<hosts>[^/?@]*,[^/?@]*)(?P<rest>(?:[/?].*)?)"
)
_HOST: Final = re.compile(r"(?:\[(?P<address>[^]]+)\]|(?P<name>[^:]+))(?::(?P<port>\d+))?")
_DEFAULT_PORT: Final = "5432"
_PRIMARY: Final = {"target_session_attrs": "read-write"}
_READ_ONLY: Final = "25006"


def parse_url(text: str) -> URL:
    """Parse the URL of a ledger, which may name several PostgreSQL servers (`host:port,host:port`).

    With several servers, only the one that accepts writes is used, unless the URL sets
    `target_session_attrs`.

    Raises:
        ConfigurationError: `text` is not a database URL.
    """
    try:
        url = _parse(text)
    except (exc.ArgumentError, ValueError):
        # The message shows neither the text nor the cause, because both contain the password.
        raise ConfigurationError(
            "`SLUICEGATE_LEDGER_URL` is not a database URL such as"
            " `postgresql+psycopg://user:password@host:5432,other:5432/sluicegate`;"
            " percent-encode special characters of the password"
        ) from None
    hosts = url.query.get("host", "")
    names_several = not isinstance(hosts, str) or "," in hosts
    return url.update_query_dict({**_PRIMARY, **url.query}) if names_several else url


def _parse(text: str) -> URL:
    """Parse a URL. SQLAlchemy itself does not accept several servers, as libpq does."""
    several = _SEVERAL_HOSTS.fullmatch(text)
    if several is None:
        return make_url(text)
    hosts, ports = [], []
    for place in several["hosts"].split(","):
        host = _HOST.fullmatch(place)
        if host is None:
            raise ValueError(place)
        hosts.append(host["address"] or host["name"])
        ports.append(host["port"] or _DEFAULT_PORT)
    places = {"host": ",".join(hosts), "port": ",".join(ports)}
    return make_url(several["begin"] + several["rest"]).update_query_dict(places)


def make_engine(url: URL, *, timeout: float) -> Engine:
    """Return an engine whose statements take at most `timeout` seconds.

    The server cancels a statement that takes longer. If the server does not answer, the engine
    shuts the connection down. If one connection has ended, or its server has become a standby, the
    engine replaces all connections when they are used next. It has at most `CONNECTIONS`.
    """
    # Options in the URL take precedence.
    options = {name: value for name, value in _CONNECTING.items() if name not in url.query}
    engine = sqlalchemy.create_engine(
        url, pool_size=CONNECTIONS, max_overflow=0, pool_timeout=timeout, connect_args=options
    )
    event.listen(engine, "do_connect", partial(_connect, timeout=timeout))
    # This timer also bounds the queries that SQLAlchemy itself sends on the first connection.
    event.listen(engine, "connect", _on_made, insert=True)
    event.listen(engine, "connect", _on_checkin)
    event.listen(engine, "checkout", partial(_on_checkout, longest=timeout + _BEYOND_STATEMENT))
    event.listen(engine, "checkin", _on_checkin)
    event.listen(engine, "handle_error", _on_error)
    return engine


def lift_limits(connection: Connection) -> None:
    """Remove the time limits of this transaction, because a migration may change large tables."""
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    _stop(connection.connection)


def _connect(
    dialect: Dialect,
    _: ConnectionPoolEntry,
    arguments: list[Any],  # Any: the driver's
    options: dict[str, Any],
    *,
    timeout: float,
) -> Any:
    """Connect, and set the time limits of the session.

    Raises:
        ConfigurationError: the database has no text encoding.
    """
    connection: Any = dialect.connect(*arguments, **options)
    try:
        _check_encoding(connection.info.parameter_status("server_encoding"))
        with _in_time(connection), connection.cursor() as cursor:
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
            "the ledger's database has the encoding SQL_ASCII, which cannot hold all text: create"
            " a database with `CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0`"
        )


def _on_checkout(
    connection: Any,  # Any: the driver's
    entry: ConnectionPoolEntry,
    _: PoolProxiedConnection,
    *,
    longest: float,
) -> None:
    """Check that the connection is alive, and start the timer that bounds its use."""
    try:
        with _in_time(connection):
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
            connection.rollback()
    except Exception as error:  # of any driver: the pool makes new connections
        # All connections of the pool lead to the same server, and each check would take as long.
        raise exc.InvalidatePoolError from error
    _keep(entry, _timer(connection, longest))


def _on_made(connection: Any, entry: ConnectionPoolEntry) -> None:  # Any: the driver's
    _keep(entry, _timer(connection, _LONGEST_CHECK))


def _keep(entry: ConnectionPoolEntry, timer: Timer) -> None:
    if entry.record_info is None:  # the connection has left the pool: nobody could stop the timer
        timer.cancel()
    else:
        entry.record_info[_TIMER] = timer


def _on_checkin(_: object, entry: ConnectionPoolEntry) -> None:
    _stop(entry)


def _stop(entry: ConnectionPoolEntry | PoolProxiedConnection) -> None:
    timer: Timer | None = (entry.record_info or {}).pop(_TIMER, None)
    if timer is not None:
        timer.cancel()


def _on_error(context: ExceptionContext) -> None:
    """Replace the connections after a server that was the primary has refused a write."""
    if getattr(context.original_exception, "sqlstate", "") == _READ_ONLY:
        context.is_disconnect = True


@contextlib.contextmanager
def _in_time(connection: Any) -> Iterator[None]:
    """Shut the connection down if the block takes longer than `_LONGEST_CHECK`."""
    timer = _timer(connection, _LONGEST_CHECK)
    try:
        yield
    finally:
        timer.cancel()


def _timer(connection: Any, seconds: float) -> Timer:
    timer = Timer(seconds, _shut_down, args=(connection,))
    timer.daemon = True
    timer.start()
    return timer


def _shut_down(connection: Any) -> None:
    """Shut the connection's socket down, so that a thread that waits for the server fails."""
    # The connection may have ended meanwhile.
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)
