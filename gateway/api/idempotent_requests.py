"""Answers requests with an `Idempotency-Key` once, and their retries with the same answer.

This is a step before the work, so it applies to every route and dialect. Without the header nothing
is done.
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final

import msgspec

from sluicegate.gateway.api.answers import PRIVATE
from sluicegate.gateway.api.content_coding import accepted_coding, inflate
from sluicegate.gateway.api.http import Headers, HttpReply
from sluicegate.gateway.api.incoming_request import IncomingBody, IncomingRequest
from sluicegate.gateway.errors import (
    IdempotencyKeyInUse,
    IdempotencyKeyReused,
    InvalidRequest,
    PayloadTooLarge,
)
from sluicegate.gateway.idempotency.store import Claim, ClaimOutcome, IdempotencyStore, StoredKey
from sluicegate.gateway.rate_limit.base import Decision, RateLimiter
from sluicegate.gateway.rate_limit.charges import charges_for
from sluicegate.gateway.rate_limit.headers import rate_limit_lines
from sluicegate.gateway.rate_limit.refusals import beyond_limit
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.types import Principal, RequestId
from sluicegate.wire.http.messages import header_lines

HEADER: Final = b"idempotency-key"
_FORM: Final = re.compile(rb"[!-~]{1,255}")
_ID_DIGITS: Final = 26
_FORM_TYPE: Final = re.compile(
    rb'multipart/form-data; *boundary=("?)([^"; ,]{1,70})\1', re.IGNORECASE
)
_KEPT: Final = frozenset(
    {
        b"content-type",
        b"content-encoding",
        b"vary",
        b"x-request-id",
        b"sluicegate-vectors",
        b"etag",
    }
)
LARGEST_ANSWER: Final = 64 * 1024
"""Bytes of a body up to which an answer is stored."""
_LARGEST_INFLATED: Final = 128 * LARGEST_ANSWER
_FIRST_FAULT: Final = 500
# What another try may mend, by waiting or by what an operator does, beside the faults.
_PASSING: Final = frozenset({401, 402, 403, 404, 408, 409, 425, 429})


class StoredAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Holds the part of an answer that is replayed."""

    status: int
    headers: Headers
    """Those of `_KEPT` that it has."""
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredAnswer).decode


async def answer_for_retries(
    status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> bytes:
    """Return the part of an answer that retries get, encoded for the store.

    It is empty if another try may end differently. Names of `headers` are in lower case.
    """
    if status >= _FIRST_FAULT or status in _PASSING or len(body) > LARGEST_ANSWER:
        return b""
    answer = StoredAnswer(status, [each for each in headers if each[0] in _KEPT], body)
    try:
        await _inflated(answer)
    except PayloadTooLarge:
        return b""  # a retry that cannot read it compressed could not be answered
    return _encode(answer)


class IdempotentRequests:
    """Claims the keys of requests, so that a request with a key runs only once.

    `has_route` says whether a path has a route for a method other than `GET`. Without one, a key
    changes nothing.
    """

    def __init__(
        self,
        *,
        store: IdempotencyStore,
        limiter: RateLimiter,
        has_route: Callable[[str, str], bool],
    ) -> None:
        self._has_route = has_route
        self._store = store
        self._limiter = limiter

    async def claim(
        self, request: IncomingRequest, body: IncomingBody, runtime: Runtime
    ) -> StoredKey | HttpReply | None:
        """Return the claimed key of a request that is to run now, or the answer to a retry.

        Return `None` for a request without an idempotency key, a valid API key or a route.

        Raises:
            GatewayError: the request is refused.
            ClientDisconnected: the caller is gone.
        """
        principal = request.principal
        if HEADER not in request.fields or principal is None:
            return None
        if not self._has_route(request.method, request.path):
            return None
        key = read_key(request.headers)
        await body.read_ahead(request, runtime)
        print_ = _fingerprint(principal, request, body, runtime)
        stored = self._store.key(principal.tenant, name_of(key), deadline=request.deadline)
        claim = await stored.claim(print_)
        if claim.outcome is ClaimOutcome.OWNED:
            request.recorded_id = id_of(principal, key, print_, claim.first)
            return stored
        limits = runtime.document.limits
        charges = charges_for(
            principal, default_tenant_rules=limits.tenant, default_key_rules=limits.key
        )
        decision = self._limiter.try_admit(charges) or await self._limiter.admit(charges)
        request.added_lines = rate_limit_lines(decision) + request.added_lines
        answer = await _readable(_stored_answer(claim, decision), request)
        return _replay(answer, request.id_line)


def _fingerprint(
    principal: Principal, request: IncomingRequest, body: IncomingBody, runtime: Runtime
) -> bytes:
    # A body above the bound counts by its declared length or, without one, by its beginning.
    content = body.content[: runtime.document.request.max_body_bytes]
    content = content or request.fields.get(b"content-length", b"")
    content_type = request.fields.get(b"content-type", b"")
    return fingerprint(principal, request.method, request.target, content_type, content)


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


def _stored_answer(claim: Claim, decision: Decision) -> StoredAnswer:
    """Return what is to be replayed.

    Raises:
        GatewayError: a limit is used up, another request has the key, or it is not done yet.
    """
    if not decision.allowed:
        raise beyond_limit(decision)
    if claim.outcome is ClaimOutcome.OTHER:
        raise IdempotencyKeyReused(
            "This `Idempotency-Key` came with another body, route or method before; choose a new"
            " key for each request, and repeat it with the same request only."
        )
    if claim.outcome is ClaimOutcome.RUNNING:
        raise IdempotencyKeyInUse(
            "The request with this `Idempotency-Key` is not done yet; try again.", retry_after=1.0
        )
    return _decode(claim.answer)


async def _readable(answer: StoredAnswer, request: IncomingRequest) -> StoredAnswer:
    """Return `answer` without compression, unless this caller accepts its coding."""
    accepted = accepted_coding(request.fields.get(b"accept-encoding", b""))
    coding = dict(answer.headers).get(b"content-encoding", b"").decode()
    return answer if accepted == coding else await _inflated(answer)


async def _inflated(answer: StoredAnswer) -> StoredAnswer:
    """Return `answer` without compression, which takes a thread.

    Raises:
        PayloadTooLarge: it is too long.
    """
    headers = dict(answer.headers)
    coding = headers.pop(b"content-encoding", b"").decode()
    if not coding:
        return answer
    body = await asyncio.to_thread(inflate, answer.body, coding, limit=_LARGEST_INFLATED)
    return StoredAnswer(answer.status, list(headers.items()), body)


def _replay(answer: StoredAnswer, own_lines: bytes) -> HttpReply:
    stored = header_lines(answer.headers)
    lines = b"%bidempotency-replayed: true%b%b" % (stored, PRIVATE, own_lines)
    return HttpReply(answer.status, lines, answer.body)
