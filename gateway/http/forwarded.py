"""Finds the client of a request in what trusted proxies added to its head.

The header is `X-Forwarded-For` or `Forwarded` (RFC 7239). Each proxy appends the address that it
was called from, so the list is read from its end: the client is the first address that is no
trusted proxy's. What stands before it anybody may have written, as all of a header that no proxy
writes.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gateway.sockets.networks import Networks, parse_address

FORWARDED: Final = b"forwarded"
# A token, or a quoted string, in which a comma or semicolon separates nothing.
_PAIR: Final = re.compile(
    r"[ \t]*(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)="
    r'(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<token>[^",; \t]+))[ \t]*(?P<end>[,;]|$)'
)
_NODE: Final = re.compile(
    r"\[(?P<v6>[^\]]+)\](?::[0-9]+)?|(?P<v4>[0-9.]+)(?::[0-9]+)?|(?P<bare>.*)"
)
_MOST_HOPS: Final = 32


def client_of(
    peer: str, headers: Iterable[tuple[bytes, bytes]], trusted: Networks, field: bytes
) -> str:
    """Return the address of the client whose request came from `peer`.

    It is `peer` where that is not trusted. `field` is the header that the proxies write. Where that
    says nothing readable, the client is the last address that is known for sure.
    """
    if peer not in trusted:
        return peer
    text = ",".join([value.decode("latin-1") for name, value in headers if name == field])
    read = _forwarded_nodes if field == FORWARDED else _listed_nodes
    client = peer
    for node in list(read(text))[: -_MOST_HOPS - 1 : -1]:
        address = _address(node)
        if not address:
            return client
        client = address
        if client not in trusted:
            return client
    return client


def _listed_nodes(text: str) -> Iterator[str]:
    yield from text.split(",") if text else ()


def _forwarded_nodes(text: str) -> Iterator[str]:
    """Yield what each element says of `for`; empty where it says nothing."""
    at, node = 0, ""
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:  # where this element ends, nobody knows: nor what came before it
            yield ""
            at, node = text.find(",", at) + 1 or len(text), ""
            continue
        if pair["name"].lower() == "for":
            quoted = pair["quoted"]
            node = pair["token"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = pair.end()
        if pair["end"] != ";":
            yield node
            node = ""


def _address(node: str) -> str:
    found = _NODE.fullmatch(node.strip())
    text = "" if found is None else found["v6"] or found["v4"] or found["bare"] or ""
    address = parse_address(text)
    return "" if address is None else str(address)
