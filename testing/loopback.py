"""Sends requests without TLS to processes on this machine."""

import ssl
from functools import cache
from typing import Any  # Any: httpx's options

import httpx


@cache
def no_authorities() -> ssl.SSLContext:
    """Return a value for `verify` of a client that calls without TLS.

    By default httpx reads all certificate authorities for each client, which takes 19 ms.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def get(url: str, **options: Any) -> httpx.Response:
    """Send a GET request on a new connection."""
    return httpx.get(url, verify=no_authorities(), **options)


def is_answered(url: str, *, timeout: float = 5.0) -> bool:
    """Return whether a GET request is answered with success."""
    try:
        return get(url, timeout=timeout).is_success
    except httpx.TransportError:
        return False
