"""Reads what callers name their requests by, beside the ids that the gateway gives."""

import re
from collections.abc import Mapping
from typing import Final

ECHO: Final = "x-client-request-id"
"""The header of answers that repeats it."""
_FORM: Final = re.compile(rb"[A-Za-z0-9._:/=+@~-]{1,128}")


def parse_client_id(headers: Mapping[bytes, bytes]) -> str:
    """Return what the caller names the request by; empty where it is nothing that is kept.

    Proxies name requests, too: what they chose is no reason to refuse one.
    """
    value = headers.get(b"x-request-id") or headers.get(b"x-client-request-id") or b""
    return value.decode() if _FORM.fullmatch(value) else ""
