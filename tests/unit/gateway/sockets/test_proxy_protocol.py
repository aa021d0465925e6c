"""Headers of the PROXY protocol: what they say, in whatever pieces they come."""

import asyncio
import socket
import struct
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given, settings, strategies as st

from sluicegate.gateway.sockets.proxy_protocol import (
    InvalidProxyHeader,
    parse_proxy_header,
    receive_proxy_header,
)

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))
PORTS = st.integers(0, 65_535)


def line(client: IPv4Address | IPv6Address, port: int) -> bytes:
    """Return the header in version 1."""
    other = "::1" if client.version == 6 else "127.0.0.1"
    return f"PROXY TCP{client.version} {client} {other} {port} 443\r\n".encode()


def block(client: IPv4Address | IPv6Address, port: int, more: bytes = b"") -> bytes:
    """Return the header in version 2, with `more` behind its addresses."""
    addresses = client.packed * 2 + struct.pack("!HH", port, 443) + more
    family = 0x11 if client.version == 4 else 0x21
    return SIGNATURE + struct.pack("!BBH", 0x21, family, len(addresses)) + addresses


@given(
    client=ADDRESSES,
    port=PORTS,
    more=st.binary(max_size=40),
    rest=st.binary(max_size=40),
    is_text=st.booleans(),
)
def test_a_header_names_the_client_and_what_follows_is_not_its_own(
    client: IPv4Address | IPv6Address, port: int, more: bytes, rest: bytes, *, is_text: bool
) -> None:
    header = line(client, port) if is_text else block(client, port, more)

    read = parse_proxy_header(header + rest)

    assert read == (str(client), len(header))
    assert all(parse_proxy_header(header[:end]) is None for end in range(len(header)))


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=60).map(SIGNATURE.__add__)))
@settings(max_examples=300)
def test_what_is_no_header_is_an_error_or_not_yet_one(data: bytes) -> None:
    try:
        read = parse_proxy_header(data)
    except InvalidProxyHeader:
        return

    assert read is None or read.size <= len(data)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n",
        SIGNATURE + b"\x20\x00\x00\x00",
        SIGNATURE + b"\x21\x31\x00\x02ab",
    ],
    ids=["unknown", "unknown with addresses", "local", "of a Unix socket"],
)
def test_a_connection_of_the_proxy_itself_names_nobody(header: bytes) -> None:
    assert parse_proxy_header(header) == ("", len(header))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 1.1.1.1 ::1 1 2\r\n",
        b"PROXY TCP4 1.1.1.1 2.2.2.2 1 70000\r\n",
        b"PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n",
        b"PROXY " + b"x" * 101,
        SIGNATURE + b"\x11\x11\x00\x00",
        SIGNATURE + b"\x21\x11\x00\x04abcd",
        SIGNATURE + b"\x21\x11\xff\xff",
    ],
    ids=["http", "families", "port", "short", "endless", "version", "addresses", "length"],
)
def test_a_malformed_header_is_an_error(data: bytes) -> None:
    with pytest.raises(InvalidProxyHeader):
        parse_proxy_header(data)


@pytest.mark.anyio
@pytest.mark.parametrize("header", [line(IPv4Address("9.9.9.9"), 1), block(IPv6Address("9::9"), 1)])
async def test_what_follows_a_header_stays_in_the_socket(header: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        reading = asyncio.create_task(receive_proxy_header(ours))
        for at in range(0, len(header) - 1, 5):
            theirs.send(header[at : at + 5])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if (len(header) - 1) % 5 == 0:
            theirs.send(header[-1:])
        theirs.send(b"rest")

        client = await reading

        assert client in ("9.9.9.9", "9::9")
        assert ours.recv(100) == b"rest"


@pytest.mark.anyio
async def test_a_connection_that_ends_before_its_header_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        theirs.send(b"PROXY TCP4")
        theirs.close()

        with pytest.raises(InvalidProxyHeader):
            await receive_proxy_header(ours)
