"""Reads the header with which a proxy names its client (PROXY protocol, versions 1 and 2).

https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
"""

import asyncio
import re
import socket
import struct
from ipaddress import ip_address
from typing import Final, NamedTuple

from sluicegate.wire.http.accepting import NotEstablished

_V1_START: Final = b"PROXY "
_V1_MOST_BYTES: Final = 107
_V1_LINE: Final = re.compile(
    rb"PROXY (?:(UNKNOWN)(?: .*)?|(TCP[46]) (\S+) (\S+) (\d{1,5}) (\d{1,5}))\r\n"
)
_V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_FIXED_BYTES: Final = 16
_V2_MOST_BYTES: Final = 4096
_V2_ADDRESSES: Final = {0x11: 4, 0x21: 16}  # TCP over IPv4 and over IPv6
_LOCAL, _PROXY = 0x20, 0x21
_LARGEST_PORT: Final = 65_535
UNKNOWN_CLIENT: Final = b"PROXY UNKNOWN\r\n"
"""The header of a connection of the proxy's own."""


class InvalidProxyHeader(NotEstablished):
    """What came is no such header."""

    cause = "proxy_header"


class ProxyHeader(NamedTuple):
    """The client's address, empty for connections of the proxy's own, and the header's length."""

    client: str
    size: int


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """Return the header that `data` begins with, `None` where more of it has to arrive.

    Raises:
        InvalidProxyHeader: it begins with none.
    """
    if _V2_SIGNATURE.startswith(data[: len(_V2_SIGNATURE)]):
        return None if len(data) < _V2_FIXED_BYTES else _parse_v2(data)
    if not _V1_START.startswith(data[: len(_V1_START)]):
        raise InvalidProxyHeader("no header of the PROXY protocol came")
    end = data.find(b"\r\n", 0, _V1_MOST_BYTES) + 2
    if end > 1:
        return _parse_v1(data[:end])
    if len(data) >= _V1_MOST_BYTES:
        raise InvalidProxyHeader("the line of the PROXY protocol does not end")
    return None


async def receive_proxy_header(connection: socket.socket) -> str:
    """Take the header from a connection that does not block, and return the client's address.

    What follows the header stays in the socket.

    Raises:
        InvalidProxyHeader: none came.
        OSError: the connection broke.
    """
    received = b""
    while True:
        await _readable(connection)
        try:
            peeked = connection.recv(_V2_MOST_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        if not peeked:
            raise InvalidProxyHeader("the connection ended before its header")
        header = parse_proxy_header(received + peeked)
        own = len(peeked) if header is None else header.size - len(received)
        received += connection.recv(own)
        if header is not None:
            return header.client


def _parse_v1(line: bytes) -> ProxyHeader:
    found = _V1_LINE.fullmatch(line)
    if found is None:
        raise InvalidProxyHeader("the line of the PROXY protocol is malformed")
    if found[1]:
        return ProxyHeader("", len(line))
    if max(int(found[5]), int(found[6])) > _LARGEST_PORT:
        raise InvalidProxyHeader("the line of the PROXY protocol names no port")
    version = int(found[2][-1:])
    addresses = [_text_address(each, version) for each in (found[3], found[4])]
    return ProxyHeader(addresses[0], len(line))


def _text_address(text: bytes, version: int) -> str:
    try:
        address = ip_address(text.decode("ascii"))
    except ValueError as error:  # a `UnicodeDecodeError` is one
        raise InvalidProxyHeader("the line of the PROXY protocol names no address") from error
    if address.version != version:
        raise InvalidProxyHeader("the line of the PROXY protocol has addresses of another family")
    return str(address)


def _parse_v2(data: bytes) -> ProxyHeader | None:
    command, family, length = struct.unpack_from("!BBH", data, len(_V2_SIGNATURE))
    size = _V2_FIXED_BYTES + length
    if command not in (_LOCAL, _PROXY):
        raise InvalidProxyHeader("the header of the PROXY protocol has an unknown command")
    if size > _V2_MOST_BYTES:
        raise InvalidProxyHeader("the header of the PROXY protocol is too long")
    if len(data) < size:
        return None
    octets = _V2_ADDRESSES.get(family, 0)
    if command == _LOCAL or not octets:
        return ProxyHeader("", size)
    if length < 2 * octets + 4:
        raise InvalidProxyHeader("the header of the PROXY protocol lacks addresses")
    packed = data[_V2_FIXED_BYTES : _V2_FIXED_BYTES + octets]
    return ProxyHeader(str(ip_address(packed)), size)


async def _readable(connection: socket.socket) -> None:
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(connection)
