"""Listening sockets that are taken over, and that are closed without losing a connection."""

import asyncio
import socket
import sys
from collections.abc import Iterator

import pytest

from sluicegate.wire.listening import (
    accept_for_siblings,
    refuse_new_connections,
    wait_until_empty,
)
from testing.waiting import until

pytestmark = pytest.mark.anyio


def greet(connection: socket.socket, _address: str) -> None:
    connection.send(b"hello")
    connection.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


def caller(listener: socket.socket) -> socket.socket:
    """Return a socket that connects, without waiting for it."""
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex(listener.getsockname())
    return made


async def test_who_waits_at_a_socket_that_nobody_reads_is_taken_over(
    listener: socket.socket,
) -> None:
    loop, leaving = asyncio.get_running_loop(), asyncio.Event()
    taking = asyncio.create_task(accept_for_siblings([listener], greet, until=leaving))
    callers = [caller(listener) for _ in range(100)]

    answers = [await loop.sock_recv(each, 100) for each in callers]

    assert answers == [b"hello"] * 100
    leaving.set()
    await taking
    for each in callers:
        each.close()


async def test_a_socket_that_does_not_listen_yet_is_left_alone() -> None:
    leaving = asyncio.Event()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        taking = asyncio.create_task(accept_for_siblings([bound], greet, until=leaving))
        leaving.set()
        await taking


@pytest.mark.skipif(sys.platform != "linux", reason="needs socket filters of Linux")
async def test_new_callers_wait_and_those_who_came_before_are_served(
    listener: socket.socket,
) -> None:
    loop = asyncio.get_running_loop()
    with caller(listener) as before:
        refuse_new_connections(listener)
        with caller(listener) as after:
            accepted, _ = listener.accept()
            with pytest.raises(BlockingIOError):
                listener.accept()
            with accepted:
                accepted.sendall(b"served")
                assert await loop.sock_recv(before, 100) == b"served"
            assert after.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs socket filters of Linux")
async def test_where_no_filter_is_taken_the_end_of_accepting_goes_on_without(
    listener: socket.socket,
) -> None:
    listener.setsockopt(socket.SOL_SOCKET, 44, 1)  # SO_LOCK_FILTER: none is taken any more

    refuse_new_connections(listener)
    await wait_until_empty([listener])


async def test_the_queue_is_waited_for_until_it_is_empty(listener: socket.socket) -> None:
    with caller(listener):
        refuse_new_connections(listener)
        waiting = asyncio.create_task(wait_until_empty([listener]))
        await until(lambda: not waiting.done())

        listener.accept()[0].close()

        await waiting
