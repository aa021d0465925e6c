"""Decides, charges, counts and publishes requests to the inference routes: the steps of the core.

The core calls `reply_now`. If the answer has to wait, `pursue` goes on by callbacks, and
`reply_later` is for the cases that need a task.
Memory hits that repeat an earlier one are answered by `gateway.api.hits`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

from sluicegate.gateway.api.answers import PRIVATE, failed_usage, timing_line
from sluicegate.gateway.api.body_reader import BodyReader
from sluicegate.gateway.api.content_coding import SMALLEST, VARY, accepted_coding
from sluicegate.gateway.api.error_handling import gateway_error
from sluicegate.gateway.api.hits import MemoryHits, StoredHits
from sluicegate.gateway.api.http import HttpReply, check_length
from sluicegate.gateway.api.incoming_request import IncomingRequest
from sluicegate.gateway.api.inference_route import RouteMatch
from sluicegate.gateway.api.key_rights import check_budget, check_model
from sluicegate.gateway.api.large_answers import LargeAnswers, estimated_bytes
from sluicegate.gateway.api.request_events import RequestEvents
from sluicegate.gateway.api.request_headers import parse_request_options
from sluicegate.gateway.api.request_state import ParsedBody, RequestState
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.cache.entry import CacheHit
from sluicegate.gateway.errors import GatewayError, MethodNotAllowed
from sluicegate.gateway.http.byte_budget import LARGE, ByteBudget
from sluicegate.gateway.http.problem_details import problem_lines
from sluicegate.gateway.http.request_head import echo_line
from sluicegate.gateway.http.unsent_answers import LARGE_BYTES, UnsentAnswers
from sluicegate.gateway.inference.inference import Inference
from sluicegate.gateway.inference.interfaces import ModelTable
from sluicegate.gateway.inference.prepared_request import PreparedRequest
from sluicegate.gateway.rate_limit.base import Decision, RateLimiter
from sluicegate.gateway.rate_limit.headers import rate_limit_lines
from sluicegate.gateway.rate_limit.refusals import beyond_limit
from sluicegate.gateway.rate_limit.repeated_charges import RepeatedCharges
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.gateway.telemetry.spans import MEMORY
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.types import Answer, RequestId
from sluicegate.wire.http.messages import CLOSE

SHORT: Final = 8 * 1024
"""Bytes of a body that is read at once; a longer one waits for its turn."""
# Large requests together may take the memory of this many of the largest that are allowed.
_LARGEST_REQUESTS = 2
_OnPursued = Callable[[RequestState, HttpReply | None], object]


class RequestProcessor:
    """What the inference routes share. One per worker."""

    def __init__(
        self,
        *,
        runtimes: RuntimeStore,
        keys: KeyRing,
        limiter: RateLimiter,
        inference: Inference,
        models: ModelTable,
        events: RequestEvents,
        metrics: GatewayMetrics,
        tracer: Tracer,
        unsent: UnsentAnswers,
    ) -> None:
        self._runtimes = runtimes
        self._keys = keys
        self._limiter = limiter
        self._inference = inference
        self._events = events
        self._metrics = metrics
        self._phases = metrics.phases
        self.tracer = tracer
        self._now = events.now
        self._bodies = BodyReader(models)
        self._turn = asyncio.Lock()
        self.memory = ByteBudget(0, what="Large requests", clock=self._now)
        self.large_answers = LargeAnswers(unsent)
        self._repeated = RepeatedCharges(limiter.repeated_charge)
        self._repeated_under: tuple[Runtime | None, int] = (None, 0)
        self._stored_hits = StoredHits(inference=inference, events=events)
        self.hits = MemoryHits(
            runtimes=runtimes,
            inference=inference,
            limiter=limiter,
            events=events,
            phases=metrics.phases,
            tracer=tracer,
        )

    def new_state(self, match: RouteMatch, id_: RequestId | None = None) -> RequestState:
        """Return the state of a new request with the current runtime.

        Without `id_`, the request gets a new id.
        """
        state = RequestState(
            id_ or self._events.ids.new(),
            route=match.route,
            runtime=self._runtimes.current,
            started=self._now(),
            began=self._phases.clock(),
        )
        if match.parameters:
            state.parameters = match.parameters
        return state

    def start_span(self, state: RequestState, context: str) -> None:
        """Decide whether the request, which came with a trace context, is recorded."""
        state.span = self.tracer.request(state.route.span_name, context, state.route.attributes)

    def read_head(self, state: RequestState, request: IncomingRequest) -> None:
        """Find out who asks and for what, by the head of the request.

        Raises:
            GatewayError: the request ends here; see `failed`.
        """
        document, headers = state.runtime.document, request.fields
        state.expects = bool(headers.get(b"expect"))
        state.wants_timing = bool(headers.get(b"x-server-timing"))
        state.caller_id = request.caller_id
        state.own_lines = echo_line(state.caller_id)
        if request.method != "POST":
            raise MethodNotAllowed("Use POST for this route.")
        state.principal = request.principal
        if state.principal is None:
            raise request.refusal()
        check_budget(state.principal)
        if request.recorded_id is not None:  # the ledger counts one answer under this id
            state.attempt, state.id = state.id, request.recorded_id
        check_length(headers.get(b"content-length", b""), limit=document.request.max_body_bytes)
        state.options = parse_request_options(headers, document.deadline)
        state.coding = accepted_coding(headers.get(b"accept-encoding", b""))
        if state.route.headers:
            state.fields = tuple([headers.get(name, b"") for name in state.route.headers])

    async def _read_long(self, state: RequestState, raw: bytes) -> None:
        """Wait for the turn of a longer body. Have a thread read a large one instead.

        Raises:
            DeadlineExceeded: other bodies have their turns until the deadline.
        """
        # A thread reads large bodies, because one would hold the event loop.
        if len(raw) > LARGE:
            async with state.time_for("the reading of the body"):
                state.parsed = await self._bodies.read_large(state, raw)
            return
        # An iteration of the event loop reads one other body. Many bodies of 2,000 items in one
        # iteration would hold the loop.
        async with state.time_for("the reading of the body"):
            await self._turn.acquire()
        asyncio.get_running_loop().call_soon(self._turn.release)

    def reply_now(self, state: RequestState, raw: bytes) -> HttpReply | None:
        """Return the whole answer, its event published, or `None` where it has to be waited for.

        `raw` is the request's body.
        """
        try:
            parsed = state.parsed
            if parsed is None:
                parsed = state.parsed = self._bodies.read(state, raw)
            state.task, state.usage = parsed.request.task, parsed.failed
            is_recorded = state.span.is_recorded
            if parsed.held_bytes:
                return None  # `reply_later` waits for memory
            lines = None if is_recorded else self._repeat_charge(state, parsed)
            if lines is not None:
                prepared = state.prepared = self._prepared(state, parsed, lines)
            else:
                admission = state.span.child("admission")
                decision = self._limiter.try_admit(parsed.charges)
                if decision is None:
                    return None  # `reply_later` records the admission
                with admission:
                    prepared = state.prepared = self._admitted(state, decision)
            if is_recorded:
                with state.span.child("cache lookup", MEMORY) as span:
                    answer = self._inference.from_memory(prepared, state.options.directives)
                    span.set("sluicegate.cache.hit", answer is not None)
            else:
                answer = self._inference.from_memory(prepared, state.options.directives)
            if answer is None:
                return None
            self._end_phase(state, "cache")
            return None if self._is_large(state, answer) else self._hit(state, answer)
        except Exception as error:  # noqa: BLE001 - one request's fault must not end the worker
            return self.failed(state, error)

    def pursue(self, state: RequestState, on_reply: _OnPursued) -> bool:
        """Answer by callbacks a request that `reply_now` could not answer.

        `on_reply` is called once, in a later event-loop iteration: with the whole answer, or with
        `None` if `reply_later` has to encode it. Return `False`, without a call, if `reply_later`
        has to go on, for example because the limiter waits for Redis. After `give_up` there is no
        call.
        """
        prepared, directives = state.prepared, state.options.directives
        if prepared is None or state.answer is not None:
            return False
        looked_up = partial(self._looked_up, state, prepared, on_reply)
        if not prepared.may_read(directives):
            asyncio.get_running_loop().call_soon(looked_up, None)
        else:
            read = state.recorded_lookup(looked_up) if state.span.is_recorded else looked_up
            self._inference.lookup_nowait(prepared, read, directives)
        return True

    def give_up(self, state: RequestState, error: BaseException) -> HttpReply:
        """Return the problem that ends a request, whatever it still waits for."""
        state.is_given_up = True
        if state.waits is not None:
            state.waits.cancel()
        return self.failed(state, error)

    async def reply_later(self, state: RequestState, unread: bytes) -> HttpReply:
        """Return the whole answer to a request that `reply_now` could not answer.

        `unread` is its body if `reply_now` has not read it. `large_answers.release` has to follow
        once the answer is sent.
        """
        state.phase_weight = 1  # a request that waits counts its phases for itself alone
        try:
            if unread:
                await self._read_long(state, unread)
                reply = self.reply_now(state, unread)
                if reply is not None:
                    return reply
            async with self._memory_of(state):
                if state.answer is None:
                    reply = await self._pursued(state)
                    if reply is not None:
                        return reply
                return await self._encoded(state)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as above
            return self.give_up(state, error)

    async def _pursued(self, state: RequestState) -> HttpReply | None:
        """Wait until the limits admit the request, and then for what `pursue` finds."""
        if state.prepared is None:
            _, parsed = state.caller_and_body()
            with state.span.child("admission"):
                async with state.time_for("the check of the limits"):
                    decision = await self._limiter.admit(parsed.charges)
                state.prepared = self._admitted(state, decision)
        replied: asyncio.Future[HttpReply | None] = asyncio.get_running_loop().create_future()

        def on_reply(_: RequestState, reply: HttpReply | None) -> None:
            if not replied.done():  # it was not cancelled
                replied.set_result(reply)

        self.pursue(state, on_reply)
        try:
            return await replied
        except asyncio.CancelledError:
            reply = replied.result() if replied.done() and not replied.cancelled() else None
            if reply is None:
                raise
            return reply  # its usage event is published already

    async def _encoded(self, state: RequestState) -> HttpReply:
        """Return a large answer, which a thread encodes."""
        answer, state.answer = state.answer, None
        if answer is None:
            raise RuntimeError("the request has no answer yet")
        await self.large_answers.encode(state, answer)
        return self._answered(state, answer)

    @contextlib.asynccontextmanager
    async def _memory_of(self, state: RequestState) -> AsyncIterator[None]:
        """Hold the memory that a large request may take; wait for it within the deadline."""
        principal, parsed = state.caller_and_body()
        if not parsed.held_bytes:
            yield
            return
        bounds, size = state.runtime.document.request, parsed.held_bytes
        self.memory.limit_bytes = _LARGEST_REQUESTS * (
            bounds.max_expanded_bytes + bounds.max_answer_bytes
        )
        await self.memory.hold(principal.key, size, state.deadline)
        try:
            yield
        finally:
            self.memory.release(principal.key, size)

    def failed(self, state: RequestState, error: BaseException) -> HttpReply:
        """Return the problem that `error` is; failures are events too, and cost nothing."""
        known = gateway_error(error, state.id)
        if state.prepared is not None:
            info = state.prepared.plan.model.info
            state.model, state.revision = info.name, info.revision
        state.fail(known, failed_usage(state.usage.items))
        try:
            self._events.publish(state)
        except GatewayError as unpublished:
            known = unpublished
            state.fail(known, state.usage)
            self._events.count_request(state)
        state.lines, errors = problem_lines(known), state.route.errors
        state.content = b"content-type: %b\r\n" % errors.media.encode()
        return self._reply(state, errors.encode(known, state.id))

    def _is_large(self, state: RequestState, answer: Answer) -> bool:
        """Return whether an answer is so large that to encode it here would hold the event loop.

        If so, store it in `state.answer` for `reply_later`.
        """
        if estimated_bytes(state, answer) <= LARGE_BYTES:
            return False
        state.answer = answer
        return True

    def _repeat_charge(self, state: RequestState, parsed: ParsedBody) -> bytes | None:
        """Charge a request as an equal one before it, under the same rules."""
        runtime, generation = self._repeated_under
        if state.runtime is not runtime or self._keys.generation != generation:
            self._repeated_under = (state.runtime, self._keys.generation)
            self._repeated.clear()
        return self._repeated.charge(parsed.charges)

    def _admitted(self, state: RequestState, decision: Decision) -> PreparedRequest:
        """Return the prepared request, or raise the refusal that the limits' `decision` means."""
        lines = state.limit_lines = rate_limit_lines(decision)
        caller, parsed = state.caller_and_body()
        if not decision.allowed:
            state.admitted = self._now()
            policy = decision.violated.name if decision.violated else "unknown"
            self._metrics.rate_limited(policy, caller.tenant)
            raise beyond_limit(decision)
        for watched in decision.shadowed:
            self._metrics.shadowed(watched.name)
        self._repeated.add(parsed.charges)
        return self._prepared(state, parsed, lines)

    def _prepared(
        self, state: RequestState, parsed: ParsedBody, limit_lines: bytes
    ) -> PreparedRequest:
        """Return the work of a request that is within its limits, and its key's rights."""
        state.admitted = self._now()
        if state.phase_weight:
            state.phase_began = self._phases.end("admission", state.phase_began, state.phase_weight)
        state.limit_lines = limit_lines
        principal, prepared = state.principal, parsed.prepared
        if principal is None:
            raise RuntimeError("the request has not been read yet")
        if prepared is not None and self._inference.is_current(prepared.plan, state.runtime):
            return prepared
        request = parsed.request
        if principal.models is not None:
            check_model(principal, request.model)
        parsed.prepared = prepared = self._inference.prepare(request, principal, state.runtime)
        return prepared

    def _answered(self, state: RequestState, answer: Answer) -> HttpReply:
        parsed, info = state.parsed, answer.model.info
        if parsed is None:
            raise RuntimeError("the request has not been read yet")
        state.model, state.revision = info.name, info.revision
        lines = state.sum_up(answer, continue_on_error=parsed.request.continue_on_error)
        rendered = state.rendered or state.route.encode(parsed.body, answer, state.usage, state.id)
        body = rendered.body
        state.answer_length = len(body)
        # Last: what fails before has an event of its own.
        self._events.publish(state)
        if rendered.verdicts is not None:
            state.verdicts = self._metrics.verdicts(
                rendered.verdicts,
                state.runtime.document.guards,
                state.caller_and_body()[0].tenant,
                texts=not state.options.directives.no_store,
            )
        state.lines, state.content = lines, rendered.lines
        return self._reply(state, body)

    def _looked_up(
        self,
        state: RequestState,
        prepared: PreparedRequest,
        on_reply: _OnPursued,
        found: list[CacheHit | None] | None,
    ) -> None:
        """Answer a request after its look-up. Have the items computed that were not found.

        `found` is `None` if there was no look-up, because the request bypasses the cache.
        """
        if state.is_given_up:
            self._inference.abandon(prepared)
            return
        reply = None
        try:
            if found is None:
                found = [None] * len(prepared.keys)
            elif state.phase_weight:
                # As `_end_phase`, which would be another call.
                state.phase_began = self._phases.end("cache", state.phase_began, state.phase_weight)
            if any(found):
                reply = self._found(state, prepared, found)
            else:
                if state.phase_weight != 1:
                    state.phase_began, state.phase_weight = self._phases.clock(), 1
                state.outcomes = [None] * len(found)
            outcomes = state.outcomes
            if reply is None and state.answer is None and outcomes is not None:
                on_done = partial(self._computed, state, on_reply)
                state.waits = self._inference.compute(prepared, state.caller(), outcomes, on_done)
                return
        except Exception as error:  # noqa: BLE001 - one request's fault must not end the worker
            reply = self.give_up(state, error)
        on_reply(state, reply)

    def _computed(
        self,
        state: RequestState,
        on_reply: _OnPursued,
        answer: Answer | Exception,
    ) -> None:
        """Answer a request that was computed, or could not be."""
        if state.is_given_up:
            return
        state.waits = None  # it holds memory
        reply = None
        try:
            self._phases.end("wait", state.phase_began, state.phase_weight)
            if isinstance(answer, Exception):
                reply = self.failed(state, answer)
            elif not self._is_large(state, answer):
                reply = self._answered(state, answer)
        except Exception as error:  # noqa: BLE001 - as above
            reply = self.failed(state, error)
        on_reply(state, reply)

    def _found(
        self, state: RequestState, prepared: PreparedRequest, found: list[CacheHit | None]
    ) -> HttpReply | None:
        """Return the whole answer, or `None` if some item is not in the cache."""
        may_join = len(found) == 1 and not state.has_own_event
        if may_join and (hit := found[0]) is not None:
            body = self._stored_hits.answer(state, prepared, hit)
            if body is not None:
                return self._reply(state, body)
        if state.phase_weight != 1:
            state.phase_began, state.phase_weight = self._phases.clock(), 1
        outcomes = state.outcomes = self._inference.hits(prepared, found)
        hits = [outcome for outcome in outcomes if outcome is not None]
        if len(hits) < len(outcomes):
            return None
        answer = Answer(model=prepared.plan.model, outcomes=hits)
        return None if self._is_large(state, answer) else self._answered(state, answer)

    def _hit(self, state: RequestState, answer: Answer) -> HttpReply:
        reply = self._answered(state, answer)
        if state.is_plain:
            state.replay = self.hits.replay_of(state, answer, reply.body)
        return reply

    def _reply(self, state: RequestState, body: bytes) -> HttpReply:
        """Return the answer with the headers that every answer has."""
        lines = b"%bx-request-id: %b%b%b%b" % (
            state.lines,
            state.id.encode(),
            PRIVATE,
            state.limit_lines,
            state.content,
        )
        if state.is_body_due and state.expects:
            # What comes next may be the body or another request; nobody can tell.
            lines += CLOSE
        if len(body) >= SMALLEST:
            lines += VARY
        if state.own_lines:
            lines += state.own_lines
        if state.wants_timing:
            now = self._now()
            lines += timing_line(state.admitted - state.started, now - state.started)
        if state.span.is_recorded or state.is_fault:
            state.end_span(self.tracer, now=self._now())
        return HttpReply(state.status, lines, body)

    def _end_phase(self, state: RequestState, phase: str) -> None:
        """Count a phase of the request as it weighs; the next one begins."""
        state.phase_began = self._phases.end(phase, state.phase_began, state.phase_weight)
