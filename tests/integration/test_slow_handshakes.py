"""A caller far away, whose handshake has not ended when a listener stops to accept, is served."""

import asyncio
import socket
import subprocess
from collections.abc import Iterator

import pytest

from sluicegate.wire.listening import (
    refuse_new_connections,
    wait_until_empty,
)
from testing.namespaces import NamespaceNetwork, missing
from testing.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.system]
# The caller's SYN arrives, and nothing else of his: he is connected, and the listener not yet.
DELAY = ("iptables", "-A", "INPUT", "-p", "tcp", "!", "--syn", "-j", "DROP")
LONGER = 0.3
"""Seconds after which who does not see the handshake has long given up waiting."""


async def end_of_accepting(listener: socket.socket) -> None:
    refuse_new_connections(listener)
    await wait_until_empty([listener], within=60.0)


@pytest.fixture
def network() -> Iterator[NamespaceNetwork]:
    """Two namespaces, and what keeps a handshake from its end."""
    if reason := missing():
        pytest.skip(f"namespaces: {reason}")
    with NamespaceNetwork(("caller", "server")) as made:
        subprocess.run(made.command("server", *DELAY), check=True)
        yield made


async def test_a_handshake_that_has_begun_is_waited_for(
    network: NamespaceNetwork,
) -> None:
    loop, address = asyncio.get_running_loop(), network.address("server")
    # The table of connections is that of the thread's namespace.
    with network.inside("server"), socket.create_server((address, 0)) as listener:
        listener.setblocking(False)
        with network.inside("caller"), socket.socket() as caller:
            caller.setblocking(False)
            await loop.sock_connect(caller, listener.getsockname())
            await loop.sock_sendall(caller, b"question")
            with network.inside("server"):
                ending, began = asyncio.create_task(end_of_accepting(listener)), loop.time()
                await until(lambda: ending.done() or loop.time() - began > LONGER)
                has_waited = not ending.done()
                network.restore_traffic()
                accepted, _ = await loop.sock_accept(listener)
                await ending

            with accepted:
                assert await loop.sock_recv(accepted, 100) == b"question"
    assert has_waited
