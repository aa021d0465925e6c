"""A name may have addresses that nobody answers at: the others are found in time."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from sluicegate.gateway.sockets.connecting import Connector
from tests.support.silent_addresses import Names, listening, silent

# As short as time-outs of connections to backends are.
PATIENCE = 0.5


def connect(
    connector: Connector, loop: Names, port: int, *addresses: str, bound: float = 30.0
) -> str:
    """Return the address that took the connection."""
    loop.addresses = addresses

    async def connected() -> str:
        async with asyncio.timeout(bound):
            taken = await connector.connect("backend", port, connect_timeout=PATIENCE)
        with taken:
            return str(taken.getpeername()[0])

    return loop.run_until_complete(connected())


@pytest.fixture
def loop() -> Iterator[Names]:
    loop = Names()
    yield loop
    loop.close()


def test_an_address_that_answers_is_found_behind_silent_ones(loop: Names) -> None:
    dead = tuple(f"127.0.0.{last}" for last in range(2, 9))
    with listening("127.0.0.1") as port, silent(port, *dead):
        assert connect(Connector(), loop, port, *dead, "127.0.0.1") == "127.0.0.1"


def test_a_refusal_lets_the_next_one_be_tried(loop: Names) -> None:
    with listening("127.0.0.1") as port:
        assert connect(Connector(), loop, port, "127.0.0.2", "127.0.0.1") == "127.0.0.1"


def test_all_that_refuse_are_an_error(loop: Names) -> None:
    with listening("127.0.0.1") as port, pytest.raises(OSError, match="Multiple exceptions"):
        connect(Connector(), loop, port, "127.0.0.2", "127.0.0.3")


def test_a_name_without_an_address_is_an_error(loop: Names) -> None:
    with pytest.raises(socket.gaierror):
        connect(Connector(), loop, 1)


def test_the_order_is_that_of_the_name_server(loop: Names) -> None:
    connector = Connector()
    with listening("127.0.0.1", "127.0.0.2") as port:
        taken = [
            connect(connector, loop, port, *addresses)
            for addresses in (("127.0.0.2", "127.0.0.1"), ("127.0.0.1", "127.0.0.2"))
        ]

    assert taken == ["127.0.0.2", "127.0.0.1"]


def test_a_silent_address_is_tried_last_from_then_on(loop: Names) -> None:
    connector = Connector()
    with listening("127.0.0.1") as port:
        with silent(port, "127.0.0.2"):
            connect(connector, loop, port, "127.0.0.2", "127.0.0.1")
        # It would answer now, but was overtaken a moment ago.
        with socket.create_server(("127.0.0.2", port)):
            assert connect(connector, loop, port, "127.0.0.2", "127.0.0.1") == "127.0.0.1"


def test_nothing_is_left_of_a_connection_that_comes_too_late(loop: Names) -> None:
    with (
        listening("127.0.0.1") as port,
        silent(port, "127.0.0.2", "127.0.0.3"),
        pytest.raises(TimeoutError),
    ):
        connect(Connector(), loop, port, "127.0.0.2", "127.0.0.3", bound=PATIENCE)
