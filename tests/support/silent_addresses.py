"""Names of several addresses, at some of which nobody answers."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any  # Any: as in asyncio's types

from typing_extensions import override


class Names(asyncio.SelectorEventLoop):
    """A loop that finds `addresses` for every name."""

    addresses: tuple[str, ...] = ()

    @override
    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        family, kind = socket.AF_INET, socket.SOCK_STREAM
        return [(family, kind, socket.IPPROTO_TCP, "", (each, port)) for each in self.addresses]


@contextlib.contextmanager
def listening(*addresses: str) -> Iterator[int]:
    """Listen at all `addresses`, on one port."""
    with contextlib.ExitStack() as stack:
        port = 0
        for address in addresses:
            server = stack.enter_context(socket.create_server((address, port), backlog=16))
            port = server.getsockname()[1]
        yield port


@contextlib.contextmanager
def silent(port: int, *addresses: str) -> Iterator[None]:
    """Let nobody answer at `addresses`: their queues are full, so that the kernel drops SYNs."""
    with contextlib.ExitStack() as stack:
        for address in addresses:
            stack.enter_context(socket.create_server((address, port), backlog=0))
            for _ in range(4):
                filling = stack.enter_context(socket.socket())
                filling.setblocking(False)
                filling.connect_ex((address, port))
        yield
