"""Reads `Idempotency-Key`, and computes what names and compares the requests that carry one."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final

from gateway.errors import InvalidRequest
from gateway.types import Principal, RequestId

HEADER: Final = b"idempotency-key"
_FORM: Final = re.compile(rb"[!-~]{1,255}")
_ID_DIGITS: Final = 26
_FORM_TYPE: Final = re.compile(
    rb'multipart/form-data; *boundary=("?)([^"; ,]{1,70})\1', re.IGNORECASE
)


def read_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the key in `headers`, whose names are in lower case.

    The quotes of a string of RFC 9651, as which the draft of the header defines it, are left out.

    Raises:
        InvalidRequest: there is none, there are several, or it is too long or has other characters.
    """
    values = [value for name, value in headers if name == HEADER]
    key = values[0].strip() if len(values) == 1 else b""
    if key.startswith(b'"') and key.endswith(b'"'):
        key = key[1:-1]
    if not _FORM.fullmatch(key):
        raise InvalidRequest(
            "Send one `Idempotency-Key` of 1 to 255 visible ASCII characters, such as a UUID."
        )
    return key


def name_of(key: bytes) -> str:
    """Return what the store calls a key: of one length, and without the text of its owner."""
    return blake2b(key, digest_size=16, person=b"idempotency.key").hexdigest()


def fingerprint(
    principal: Principal, method: str, target: bytes, content_type: bytes, body: bytes
) -> bytes:
    """Return 16 bytes that differ where the request does.

    Keys of a tenant that may use other models make other requests: none is given an answer that
    it may not ask for. A form is its parts: a client that repeats it chooses another boundary.
    """
    parts = [body]
    form = _FORM_TYPE.fullmatch(content_type)
    if form is not None:
        content_type = b"multipart/form-data"
        delimiter = b"--" + form[2]
        # No other body is one: routes for JSON do not look at the content type.
        if body.startswith(delimiter):
            parts = body.split(delimiter)
    models = b"*" if principal.models is None else repr(sorted(principal.models)).encode()
    hasher = blake2b(digest_size=16, person=b"idempotency")
    for part in (method.encode(), target, models, content_type, *parts):
        hasher.update(b"%d:%b" % (len(part), part))
    return hasher.digest()


def id_of(principal: Principal, key: bytes, print_: bytes, first: float) -> RequestId:
    """Return the id under which answers to the key's request are recorded, each time they are.

    The ledger counts an id once. `first` is when the key was first seen (seconds since the epoch):
    the same request under the same key is another one when the key has been forgotten, which is a
    day later at least. Within a day (UTC) the id is the same even if the store lost the key.
    """
    day = datetime.fromtimestamp(first, UTC).date().isoformat()
    text = f"{principal.tenant}\0{day}\0".encode() + print_ + key
    digest = blake2b(text, digest_size=_ID_DIGITS // 2, person=b"idempotency.id")
    return RequestId(f"req_{digest.hexdigest()}")
