"""Connects to PostgreSQL, with time limits in case a server is unreachable or frozen."""

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

from sluicegate.gateway.errors import ConfigurationError

# Options of libpq in seconds; only `tcp_user_timeout` is in milliseconds. With these options, a
# connection fails about ten seconds after the network was cut.
_CONNECTING: Final = {
    "connect_timeout": 3,
    "keepalives": 1,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_SESSION: Final = {
    # PostgreSQL overestimates the cost of the ledger's queries, and would compile them. Compiling a
    # query takes longer than executing it.
    "jit": "off",
    # Timeouts for the server, so that it releases the locks of a client that the network cut off.
    "idle_in_transaction_session_timeout": "15s",
    "tcp_keepalives_idle": "10s",
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "2",
}
CONNECTIONS: Final = 5
"""The most connections that a process opens. A further caller waits until a connection is free."""
_TIMER: Final = "sluicegate_timer"
_BEYOND_STATEMENT: Final = 2.0
_LONGEST_CHECK: Final = 3.0
"""Maximum seconds for the check whether a connection works. The check is short, so that a frozen or
unreachable server does not delay the switch to its successor."""
_SEVERAL_HOSTS: Final = re.compile(
    r"(?P<begin>postgresql(?:\+\w+)?://"
    # User and password. As in SQLAlchemy's URLs, the password may contain `,`, `/` and `?`.
    r"(?:[^:/]*(?::[^@]*)?@|(?![^:/]*(?::[^@]*)?@)))"
    r"(?P<hosts>[^/?@]*,[^/?@]*)(?P<rest>(?:[/?].*)?)"
)
_HOST: Final = re.compile(r"(?:\[(?P<address>[^]]+)\]|(?P<name>[^:]+))(?::(?P<port>\d+))?")
_DEFAULT_PORT: Final = "5432"
_PRIMARY: Final = {"target_session_attrs": "read-write"}
_READ_ONLY: Final = "25006"


def parse_url(text: str) -> URL:
    """Parse a ledger's URL, which can name several PostgreSQL servers: `host:port,host:port`.

    If the URL names several servers, the program uses the server that accepts writes. The parameter
    `target_session_attrs` of the URL can change this choice.

    Raises:
        ConfigurationError: `text` is not a database URL.
    """
    try:
        url = _parse(text)
    except (exc.ArgumentError, ValueError):
        # The message leaves out the text and the original error, because both contain the password.
        raise ConfigurationError(
            "`SLUICEGATE_LEDGER_URL` is not a database URL such as"
            " `postgresql+psycopg://user:password@host:5432,other:5432/sluicegate`;"
            " percent-encode special characters of the password"
        ) from None
    hosts = url.query.get("host", "")
    names_several = not isinstance(hosts, str) or "," in hosts
    return url.update_query_dict({**_PRIMARY, **url.query}) if names_several else url


def _parse(text: str) -> URL:
    """Parse a URL. Move several servers to its query, because SQLAlchemy accepts only one."""
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

    The server cancels a statement that takes longer. If the server does not respond, the engine
    shuts the connection down. When the engine detects a broken connection, or that the server has
    become a standby, it replaces all its connections. The engine has at most `CONNECTIONS`
    connections.
    """
    # Options in the URL take precedence.
    options = {name: value for name, value in _CONNECTING.items() if name not in url.query}
    engine = sqlalchemy.create_engine(
        url, pool_size=CONNECTIONS, max_overflow=0, pool_timeout=timeout, connect_args=options
    )
    event.listen(engine, "do_connect", partial(_connect, timeout=timeout))
    # This timer also limits the queries that SQLAlchemy sends by itself on the first connection.
    event.listen(engine, "connect", _on_made, insert=True)
    event.listen(engine, "connect", _on_checkin)
    event.listen(engine, "checkout", partial(_on_checkout, longest=timeout + _BEYOND_STATEMENT))
    event.listen(engine, "checkin", _on_checkin)
    event.listen(engine, "handle_error", _on_error)
    return engine


def lift_limits(connection: Connection) -> None:
    """Remove the time limits of a transaction, because a migration can take long."""
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
    except BaseException:  # after any error, the connection is unusable
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
    """Check that the connection works, and start the timer that shuts the connection down."""
    try:
        with _in_time(connection):
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
            connection.rollback()
    except Exception as error:  # every driver has its own errors; the pool opens new connections
        # All connections of the pool lead to the same server, so all are replaced without a check.
        # Each further check could take as long as this check did.
        raise exc.InvalidatePoolError from error
    _keep(entry, _timer(connection, longest))


def _on_made(connection: Any, entry: ConnectionPoolEntry) -> None:  # Any: the driver's
    _keep(entry, _timer(connection, _LONGEST_CHECK))


def _keep(entry: ConnectionPoolEntry, timer: Timer) -> None:
    if entry.record_info is None:  # it has left the pool, so nobody could stop its timer
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
    """Replace all connections if the server refused a write because it has become a standby."""
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
    """Shut the connection's socket down. A thread that waits for the server then gets an error."""
    # The connection may have ended already.
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)
