"""Answers requests with an `Idempotency-Key` once, and their retries with the same answer.

This is a step before the work, so it applies to every route and dialect. Without the header nothing
is done.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from gateway.api.answers import PRIVATE
from gateway.api.content_coding import accepted_coding, inflate
from gateway.api.http import Headers, HttpReply
from gateway.api.incoming_request import IncomingBody, IncomingRequest
from gateway.errors import IdempotencyKeyInUse, IdempotencyKeyReused, PayloadTooLarge
from gateway.idempotency.keys import HEADER, fingerprint, id_of, name_of, read_key
from gateway.idempotency.store import Claim, ClaimOutcome, IdempotencyStore, StoredKey
from gateway.rate_limit.base import Decision, RateLimiter
from gateway.rate_limit.charges import charges_for
from gateway.rate_limit.headers import rate_limit_lines
from gateway.rate_limit.refusals import beyond_limit
from gateway.runtime.runtime import Runtime
from gateway.types import Principal
from wire.http.messages import header_lines

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
        stored = self._store.key(principal.tenant, name_of(key))
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
