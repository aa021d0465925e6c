"""Sends requests without TLS to processes on this machine."""

import ssl
from functools import cache
from typing import Any  # Any: httpx's options

import httpx


@cache
def no_authorities() -> ssl.SSLContext:
    """Return a value for `verify`, so that an httpx client loads no certificate authorities.

    Clients without TLS do not need certificate authorities, and loading them takes 19 ms for each
    client.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def get(url: str, **options: Any) -> httpx.Response:
    """Send a GET request on a new connection."""
    return httpx.get(url, verify=no_authorities(), **options)


def is_answered(url: str, *, timeout: float = 5.0) -> bool:
    """Return whether a GET request gets a successful answer."""
    try:
        return get(url, timeout=timeout).is_success
    except httpx.TransportError:
        return False
