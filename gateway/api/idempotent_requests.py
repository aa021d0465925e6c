"""Answers requests with an `Idempotency-Key` once, and their retries with the same answer.

This ASGI middleware stands before the application, so it applies to every route and dialect. The
fast path hands requests with the header to the application. Without the header nothing is done.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from litestar.enums import ScopeType
from litestar.types import (
    ASGIApp,
    HTTPScope,
    Message,
    Receive,
    Scope,
    Send,
)

from gateway.api.answers import PRIVATE
from gateway.api.body_timeouts import BodyTimeouts
from gateway.api.buffered_body import BufferedBody, hold_body
from gateway.api.content_coding import accepted_coding, inflate
from gateway.api.error_format import ErrorFormat
from gateway.api.http import (
    NOT_REPLAYED,
    REQUEST_ID_FIELD,
    ClientDisconnected,
    Headers,
    HttpReply,
    respond,
)
from gateway.api.problem_replies import problem_reply
from gateway.auth.bearer import find_bearer_token
from gateway.auth.key_ring import KeyRing
from gateway.errors import (
    IdempotencyKeyInUse,
    IdempotencyKeyReused,
    PayloadTooLarge,
)
from gateway.http.byte_budget import ByteBudget
from gateway.http.client_id import echo_line, parse_client_id
from gateway.idempotency.keys import HEADER, fingerprint, id_of, name_of, read_key
from gateway.idempotency.store import Claim, ClaimOutcome, IdempotencyStore, StoredKey
from gateway.rate_limit.base import Decision, RateLimiter
from gateway.rate_limit.charges import charges_for
from gateway.rate_limit.headers import rate_limit_lines
from gateway.rate_limit.refusals import beyond_limit
from gateway.runtime.store import RuntimeStore
from gateway.types import Principal, RequestId

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
_LARGEST_ANSWER: Final = 64 * 1024
_LARGEST_INFLATED: Final = 128 * _LARGEST_ANSWER
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


class IdempotentRequests:
    """Passes requests to `app`, and a request with a key only once.

    `new_id` returns ids for the requests that this middleware answers itself. `has_route` says
    whether a method and path have a route. Without a route, a request gets 405 or 404, with or
    without a key.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        store: IdempotencyStore,
        keys: KeyRing,
        limiter: RateLimiter,
        runtimes: RuntimeStore,
        errors_of: Callable[[str], ErrorFormat],
        body_budget: ByteBudget,
        new_id: Callable[[], RequestId],
        has_route: Callable[[str, str], bool],
    ) -> None:
        self._app = app
        self._has_route = has_route
        self._store = store
        self._keys = keys
        self._limiter = limiter
        self._runtimes = runtimes
        self._errors_of = errors_of
        self._body_budget = body_budget
        self._new_id = new_id
        self._body_timeouts = BodyTimeouts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != ScopeType.HTTP or not self._is_keyed(scope):
            await self._app(scope, receive, send)
            return
        principal = self._keys.find(find_bearer_token(scope["headers"]))
        if principal is None:
            await self._app(scope, receive, send)  # which refuses it
            return
        runtime = self._runtimes.current
        body = BufferedBody(receive, runtime, hold_body(self._body_budget, runtime, principal.key))
        try:
            await self._answer(principal, scope, body, send)
        except ClientDisconnected:
            return
        finally:
            body.held.release()

    def _is_keyed(self, scope: HTTPScope) -> bool:
        if scope["method"] == "GET" or HEADER not in [name for name, _ in scope["headers"]]:
            return False
        return self._has_route(scope["method"], scope["path"])

    async def _answer(
        self, principal: Principal, scope: HTTPScope, body: BufferedBody, send: Send
    ) -> None:
        limit_lines = b""
        try:
            key = read_key(scope["headers"])
            await self._body_timeouts.read(body.read(scope), deadline=body.deadline(scope))
            print_ = _fingerprint(principal, scope, body)
            stored = self._store.key(principal.tenant, name_of(key))
            claim = await stored.claim(print_)
            if claim.outcome is not ClaimOutcome.OWNED:
                decision = await self._charge(principal)
                limit_lines = rate_limit_lines(decision)
                answer = _stored_answer(claim, decision)
                reply = _replay(await _readable(answer, scope), _name_lines(scope) + limit_lines)
                await respond(send, reply)
                return
        except ClientDisconnected:
            raise
        except Exception as error:  # noqa: BLE001 - one request's fault must not end the connection
            await respond(send, self._problem(error, scope, limit_lines))
            return
        id_ = id_of(principal, key, print_, claim.first)
        await self._run(_scope_of(scope, id_), body, send, stored)

    def _problem(self, error: Exception, scope: HTTPScope, limit_lines: bytes) -> HttpReply:
        errors, lines = self._errors_of(scope["path"]), _name_lines(scope) + limit_lines
        return problem_reply(error, self._new_id(), lines, errors=errors)

    async def _run(self, scope: HTTPScope, body: BufferedBody, send: Send, key: StoredKey) -> None:
        recorder = _Recorder(send, scope, key)
        try:
            await self._app(scope, body.receive, recorder.send)
        finally:
            # Without a whole answer the next retry runs again.
            await key.finish()

    async def _charge(self, principal: Principal) -> Decision:
        """Charge a request that is not run."""
        limits = self._runtimes.current.document.limits
        charges = charges_for(
            principal,
            requests=1,
            items=0,
            default_tenant_rules=limits.tenant,
            default_key_rules=limits.key,
        )
        return self._limiter.try_admit(charges) or await self._limiter.admit(charges)


class _Recorder:
    """Sends an answer on, once what of it is to be replayed is stored."""

    def __init__(self, send: Send, scope: HTTPScope, key: StoredKey) -> None:
        self._send = send
        self._scope = scope
        self._key = key
        self._held: list[Message] = []
        self._size = 0

    async def send(self, message: Message) -> None:
        self._held.append(message)
        if message["type"] == "http.response.body":
            self._size += len(message["body"])
            if not message.get("more_body"):
                await self._key.finish(await self._stored())
            elif self._size <= _LARGEST_ANSWER:
                return
        elif message["type"] == "http.response.start":
            return
        held, self._held = self._held, []
        for each in held:
            await self._send(each)

    async def _stored(self) -> bytes:
        """Return the answer to replay, or nothing if the next retry should run again."""
        start, *rest = self._held
        is_whole = start["type"] == "http.response.start" and self._size <= _LARGEST_ANSWER
        if start["type"] != "http.response.start" or not is_whole:
            return b""
        status = start["status"]
        is_secret = self._scope["state"].get(NOT_REPLAYED)
        if status >= _FIRST_FAULT or status in _PASSING or is_secret:
            return b""
        headers = [(name, value) for name, value in start["headers"] if name in _KEPT]
        body = b"".join([m["body"] for m in rest if m["type"] == "http.response.body"])
        answer = StoredAnswer(status, headers, body)
        try:
            await _inflated(answer)
        except PayloadTooLarge:
            return b""  # a retry that cannot read it compressed could not be answered
        return _encode(answer)


def _fingerprint(principal: Principal, scope: HTTPScope, body: BufferedBody) -> bytes:
    headers = dict(scope["headers"])
    content = body.compared or headers.get(b"content-length", b"")
    target = scope["raw_path"] + b"?" + scope["query_string"]
    content_type = headers.get(b"content-type", b"")
    return fingerprint(principal, scope["method"], target, content_type, content)


def _scope_of(scope: HTTPScope, id_: RequestId) -> HTTPScope:
    """Return the scope of a request that is recorded under `id_`, and sends by messages alone."""
    copied = scope.copy()
    copied["headers"] = [*scope["headers"], (REQUEST_ID_FIELD, id_.encode())]
    copied["extensions"] = {}
    copied.setdefault("state", {})
    return copied


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


async def _readable(answer: StoredAnswer, scope: HTTPScope) -> StoredAnswer:
    """Return an answer that its first caller got compressed as this one can read it."""
    accepted = accepted_coding(dict(scope["headers"]).get(b"accept-encoding", b""))
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


def _name_lines(scope: HTTPScope) -> bytes:
    """Return the header line that repeats the caller's own id of the request, if there is one."""
    return echo_line(parse_client_id(dict(scope["headers"])))


def _replay(answer: StoredAnswer, limit_lines: bytes) -> HttpReply:
    stored = b"".join([b"%b: %b\r\n" % header for header in answer.headers])
    lines = b"%bidempotency-replayed: true%b%b" % (stored, PRIVATE, limit_lines)
    return HttpReply(answer.status, lines, answer.body)
