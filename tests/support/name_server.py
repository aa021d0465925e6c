"""Serves DNS on loopback with answers that a test changes."""

import asyncio
import socket
import struct
from typing import Self

from typing_extensions import override

_HEADER = struct.Struct("!HHHHHH")
_ANSWER, _NO_SUCH_NAME = 0x8180, 0x8183
_A = 1


class NameServer(asyncio.DatagramProtocol):
    """Answers for IPv4 addresses what `names` says, and that others do not exist."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", 0)
        )
        self.port = self._transport.get_extra_info("sockname")[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._transport is not None
        self._transport.close()

    @override
    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        number, *_ = _HEADER.unpack_from(data)
        labels, at = [], _HEADER.size
        while length := data[at]:
            labels.append(data[at + 1 : at + 1 + length].decode())
            at += 1 + length
        question = data[_HEADER.size : at + 5]
        (kind,) = struct.unpack_from("!H", data, at + 1)
        address = self.names.get(".".join(labels).lower())
        answer = b""
        if address is not None and kind == _A:
            # The name is that of the question, at offset 12; class IN, to be kept for a second.
            answer = struct.pack("!HHHIH", 0xC00C, _A, 1, 1, 4) + socket.inet_aton(address)
        flags = _NO_SUCH_NAME if address is None else _ANSWER
        header = _HEADER.pack(number, flags, 1, int(bool(answer)), 0, 0)
        assert self._transport is not None
        self._transport.sendto(header + question + answer, addr)
