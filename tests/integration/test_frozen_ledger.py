"""A PostgreSQL that freezes anywhere while a connection is made is given up."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import exc, make_url

from sluicegate.gateway.ledger import postgresql as connecting
from testing.postgresql import PostgreSQL


def _pump(source: socket.socket, sink: socket.socket, freezes_at: bytes) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            if freezes_at and freezes_at in data:
                return
            sink.sendall(data)


@contextlib.contextmanager
def frozen(path: str, at: bytes) -> Iterator[int]:
    """Yield the port of a way to the server that ends at the first question with `at`."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as server,
    ):
        server.connect(path)

        def accept() -> None:
            client, _ = listener.accept()
            back = threading.Thread(target=_pump, args=(server, client, b""), daemon=True)
            with client:
                back.start()
                _pump(client, server, at)
                back.join()

        there = threading.Thread(target=accept, daemon=True)
        there.start()
        yield listener.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        there.join()


@pytest.mark.parametrize("at", [b"SET statement_timeout", b"COMMIT", b"pg_catalog.version"])
def test_a_server_that_freezes_while_connecting_is_given_up(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch, at: bytes
) -> None:
    monkeypatch.setattr(connecting, "_LONGEST_CHECK", 0.2)
    errors: list[exc.OperationalError] = []

    def connect(port: int) -> None:
        url = make_url(f"postgresql+psycopg://tests@127.0.0.1:{port}/postgres?sslmode=disable")
        engine = connecting.make_engine(url, timeout=1.0)
        try:
            engine.connect()
        except exc.OperationalError as error:
            errors.append(error)

    with frozen(postgresql.socket(), at) as port:
        thread = threading.Thread(target=connect, args=(port,), daemon=True)
        thread.start()
        thread.join(20.0)

    assert len(errors) == 1


def test_a_connection_that_is_used_lives_longer_than_its_check_may_take(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "_LONGEST_CHECK", 3.0)
    engine = connecting.make_engine(make_url(postgresql.database()), timeout=10.0)
    try:
        with engine.connect() as connection:
            first = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
            # Longer than the check: the first transaction, and the pause before the second.
            connection.exec_driver_sql("SELECT pg_sleep(3.3)")
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT pg_backend_pid()").scalar() == first
    finally:
        engine.dispose()
