"""Takes requests that the fast path does not answer through the steps before their work.

The steps are: cross-origin rules and bounds of keys, load shedding, decompression, idempotency. An
inference request then has its head checked and its body awaited, and the core answers it. Other
requests take most of the steps, too.

The fast path keeps what these steps decide about a plain head, and skips them for equal heads.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from sluicegate.gateway.api.content_coding import inflate
from sluicegate.gateway.api.core import Core
from sluicegate.gateway.api.cross_origin import CrossOrigin
from sluicegate.gateway.api.error_handling import problem_reply
from sluicegate.gateway.api.http import ClientDisconnected, HttpReply, header_fields, too_large
from sluicegate.gateway.api.idempotent_requests import IdempotentRequests, answer_for_retries
from sluicegate.gateway.api.incoming_request import IncomingBody, IncomingRequest
from sluicegate.gateway.api.inference_route import RouteMatch
from sluicegate.gateway.api.load_shedding import LoadShedder
from sluicegate.gateway.api.request_state import RequestState
from sluicegate.gateway.http.problem_details import ErrorFormat
from sluicegate.gateway.idempotency.store import StoredKey
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.types import KeyId, RequestId

_FIRST_ERROR: Final = 400
Send = Callable[[HttpReply, KeyId | None], Awaitable[None]]
"""Sends an answer. The key, if any, holds bytes of the budget for it until this returns."""
_CODING: Final = b"content-encoding"
_REPLACED: Final = frozenset({_CODING, b"content-length", b"transfer-encoding", b"expect"})


class RequestSteps:
    """Takes requests through the steps. One per worker.

    Answers of the steps and of the work lack `IncomingRequest.added_lines`, which the sender adds.
    `errors_of` says how errors of a path are written.
    """

    def __init__(
        self,
        core: Core,
        *,
        cross_origin: CrossOrigin,
        shedder: LoadShedder,
        idempotency: IdempotentRequests,
        runtimes: RuntimeStore,
        errors_of: Callable[[str], ErrorFormat],
        new_id: Callable[[], RequestId],
    ) -> None:
        self._cross_origin = cross_origin
        self._shedder = shedder
        self._idempotency = idempotency
        self._core = core
        self._runtimes = runtimes
        self._errors_of = errors_of
        self._new_id = new_id

    async def answer(
        self, match: RouteMatch, request: IncomingRequest, body: IncomingBody, send: Send
    ) -> None:
        """Answer a request to the route of `match`: `send` gets the answer, errors included.

        If `send` is not called, the caller is gone.
        """
        await self.run(
            request,
            body,
            send,
            refuse=partial(self._shedder.answer_early, request, match.route),
            work=partial(self._work, match, request, body, send),
        )

    async def run(
        self,
        request: IncomingRequest,
        body: IncomingBody,
        send: Send,
        *,
        refuse: Callable[[], HttpReply | None] = lambda: None,
        work: Callable[[StoredKey | None], Awaitable[None]],
    ) -> None:
        """Have `work` answer a request, unless a step answers it, or the caller is gone.

        `refuse` is called after the rules for origins and keys, and may return an answer. `work`
        gets the idempotency key that was claimed for the request, if any.
        """
        claimed: StoredKey | None = None
        try:
            prepared = await self._prepare(request, body, refuse)
            if isinstance(prepared, HttpReply):
                await send(prepared.with_lines(request.added_lines), None)
            else:
                claimed = prepared
                await work(claimed)
        except ClientDisconnected:
            return
        finally:
            body.release()
            if claimed is not None:
                await claimed.finish()

    async def _prepare(
        self,
        request: IncomingRequest,
        body: IncomingBody,
        refuse: Callable[[], HttpReply | None],
    ) -> StoredKey | HttpReply | None:
        """Return the answer of the step that answers the request, or the key that was claimed."""
        runtime = self._runtimes.current
        try:
            reply = self._cross_origin.answer_early(request) or refuse()
            if reply is not None:
                return reply
            await _inflate(request, body, runtime)
            return await self._idempotency.claim(request, body, runtime)
        except ClientDisconnected:
            raise
        except Exception as error:  # noqa: BLE001 - one request's fault must not end the connection
            errors = self._errors_of(request.path)
            return problem_reply(error, self._new_id(), request.id_line, errors=errors)

    async def _work(
        self,
        match: RouteMatch,
        request: IncomingRequest,
        body: IncomingBody,
        send: Send,
        claimed: StoredKey | None,
    ) -> None:
        processor = self._core.processor
        state = processor.new_state(match)
        processor.start_span(state, processor.tracer.contexts.read(request.headers))
        try:
            reply = await self._reply(state, request, body)
            body.release()
            if claimed is not None:  # before the answer, so that retries do not find it claimed
                stored = b""
                if _is_final(state):
                    headers = header_fields(reply.lines)
                    stored = await answer_for_retries(reply.status, headers, reply.body)
                await claimed.finish(stored)
            await send(reply.with_lines(request.added_lines), state.holder)
        except ClientDisconnected:
            state.span.fail("client_gone")
            state.span.end()
        finally:
            self._core.release(state)

    async def _reply(
        self, state: RequestState, request: IncomingRequest, body: IncomingBody
    ) -> HttpReply:
        """Return the whole answer, an error's included."""
        try:
            self._core.processor.read_head(state, request)
            state.on_head_read()
            state.deadline = min(state.deadline, request.deadline)  # steps may have waited
            raw = await body.read(request, state.runtime, state.deadline)
        except ClientDisconnected:
            raise
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - must not end the worker
            return self._core.processor.failed(state, error)
        return await self._core.reply(state, raw)


def _is_final(state: RequestState) -> bool:
    """Return whether another try would end in the same way, whatever status its dialect gives."""
    # An answer that another try may complete is recorded under the id of its attempt.
    lacks_items = state.attempt == state.id and state.status < _FIRST_ERROR
    return not (state.is_passing or lacks_items)


async def _inflate(request: IncomingRequest, body: IncomingBody, runtime: Runtime) -> None:
    """Inflate the body if it is compressed; the headers of the request then say what it is now.

    Hardly more is ever inflated than a body may have. Without a valid key, nothing is inflated: the
    request is refused later anyway.

    Raises:
        GatewayError: the body is damaged, too long, too late, or in an unknown coding.
        ClientDisconnected: the caller is gone.
    """
    if _CODING not in request.fields:
        return
    codings = [value for name, value in request.headers if name == _CODING]
    coding = b", ".join(codings).strip().decode("latin-1").lower()
    if coding in ("", "identity") or request.principal is None:
        return
    limit = runtime.document.request.max_body_bytes
    await body.read_ahead(request, runtime)
    if not body.is_whole:
        raise too_large(limit)
    body.replace(await asyncio.to_thread(inflate, body.content, coding, limit=limit))
    kept = [header for header in request.headers if header[0] not in _REPLACED]
    request.set_headers([*kept, (b"content-length", b"%d" % len(body.content))])
