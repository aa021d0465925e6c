"""Inflates the bodies of requests that come compressed, before the application sees them.

The fast path hands such requests to the application. Hardly more is ever inflated than a body may
have.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from gateway.api.body_timeouts import BodyTimeouts
from gateway.api.buffered_body import BufferedBody, hold_body
from gateway.api.content_coding import inflate
from gateway.api.error_format import ErrorFormat
from gateway.api.http import ClientDisconnected, respond, too_large
from gateway.api.problem_replies import problem_reply
from gateway.auth.bearer import find_bearer_token
from gateway.auth.key_ring import KeyRing
from gateway.errors import GatewayError
from gateway.http.byte_budget import ByteBudget
from gateway.runtime.store import RuntimeStore
from gateway.types import RequestId

_NAME: Final = b"content-encoding"
_REPLACED: Final = frozenset({_NAME, b"content-length", b"transfer-encoding", b"expect"})


class CompressedRequests:
    """Passes requests to `app`, their bodies inflated."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing,
        runtimes: RuntimeStore,
        body_budget: ByteBudget,
        errors_of: Callable[[str], ErrorFormat],
        new_id: Callable[[], RequestId],
    ) -> None:
        self._app = app
        self._keys = keys
        self._runtimes = runtimes
        self._body_budget = body_budget
        self._errors_of = errors_of
        self._new_id = new_id
        self._body_timeouts = BodyTimeouts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        coding = _coding(scope)
        principal = self._keys.find(find_bearer_token(scope["headers"])) if coding else None
        # Nothing is inflated for strangers; the application refuses them.
        if principal is None:
            await self._app(scope, receive, send)
            return
        runtime = self._runtimes.current
        body = BufferedBody(receive, runtime, hold_body(self._body_budget, runtime, principal.key))
        try:
            await self._answer(scope, body, coding.decode("latin-1").lower(), send)
        except ClientDisconnected:
            return
        finally:
            body.held.release()

    async def _answer(self, scope: HTTPScope, body: BufferedBody, coding: str, send: Send) -> None:
        limit = self._runtimes.current.document.request.max_body_bytes
        try:
            await self._body_timeouts.read(body.read(scope), deadline=body.deadline(scope))
            if not body.is_whole:
                raise too_large(limit)
            body.replace(await asyncio.to_thread(inflate, body.content, coding, limit=limit))
        except GatewayError as error:
            reply = problem_reply(error, self._new_id(), errors=self._errors_of(scope["path"]))
            await respond(send, reply)
            return
        await self._app(_inflated(scope, len(body.content)), body.receive, send)


def _coding(scope: HTTPScope) -> bytes:
    values = [value for name, value in scope["headers"] if name == _NAME]
    coding = b", ".join(values).strip()
    return b"" if coding.lower() == b"identity" else coding


def _inflated(scope: HTTPScope, size: int) -> HTTPScope:
    """Return a scope that says of the body what the application receives."""
    copied = scope.copy()
    kept = [header for header in scope["headers"] if header[0] not in _REPLACED]
    copied["headers"] = [*kept, (b"content-length", b"%d" % size)]
    copied["extensions"] = {}
    return copied
