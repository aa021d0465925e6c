"""Takes plain requests to the core: requests whose head is known, and whose body is there.

A request that was a hit before is replayed. Nothing here needs a connection.
"""

from gateway.api.answers import HIT
from gateway.api.core import Core
from gateway.api.fast_path.head_cache import (
    CachedHead,
    FoundHead,
    RepeatedRequest,
    RequestHeadCache,
)
from gateway.api.http import HttpReply
from gateway.api.load_shedding import LoadShedder
from gateway.api.memory_hits import MEASURED_ONE_OF
from gateway.api.request_state import HitReplay, OnReply, RequestState
from gateway.errors import GatewayError
from gateway.telemetry.trace_context import MARK
from wire.http.messages import STATUS_LINE
from wire.http.writing import WriteCoalescer


class FastPath:
    """Answers the requests of all connections of a worker."""

    def __init__(self, core: Core, *, heads: RequestHeadCache, shedder: LoadShedder) -> None:
        self.core = core
        self.heads = heads
        self.shedder = shedder
        processor = self._processor = core.processor
        self.hit_events = processor.hits.events
        self.coalescer = WriteCoalescer(before=self.hit_events.commit)
        self._hits = processor.hits
        self._split = processor.tracer.contexts.split
        self._is_traced = processor.tracer.is_on
        self._samples = processor.tracer.samples
        self._splits_first = False
        self._until_measured = MEASURED_ONE_OF
        self._server_lines = b""
        self._hit_lines = b""

    def replay(self, request: bytes, server_lines: bytes) -> bytes | RepeatedRequest | None:
        """Return the answer to a whole request that is the same as an earlier memory hit.

        If the request is the same as an earlier hit of another tier, return the first argument of
        `repeat`. Return `None` otherwise; see also `MemoryHits.replay`.
        """
        context = ""
        found = None if self._splits_first else self.heads.find_replayable(request)
        if found is None:
            if MARK not in request and not self._splits_first:
                return None
            found, context = self._find_without_context(request)
            if found is None:
                return None
        if isinstance(found, RepeatedRequest):
            return None if context else found  # `repeat` decides whether it is recorded
        if server_lines is not self._server_lines:
            self._prepare(server_lines)
        if context and self._is_traced and self._is_recorded(context):
            return self._hits.replay_recorded(found, self._hit_lines, context)
        return self._hits.replay(found, self._hit_lines)

    def repeat(
        self, repeated: RepeatedRequest, request: bytes, on_reply: OnReply
    ) -> HttpReply | RequestState:
        """Do as `answer`, for a whole `request` that `replay` has found."""
        state = self._new_state(repeated.head, "")
        state.parsed = repeated
        self._until_measured -= 1
        if self._until_measured:
            state.phase_weight = 0
        else:
            state.phase_weight = self._until_measured = MEASURED_ONE_OF
        reply = self.core.answer(state, b"", on_reply)
        if state.replay is not None:
            self.heads.add_replayable(request, state.replay)
        return reply or state

    def find(self, head: bytes) -> FoundHead | None:
        """Return the decisions about a head, or `None` if the application answers the request."""
        context = ""
        if MARK in head:
            context, head = self._split(head)
        found = self.heads.find(head)
        return found and FoundHead(found[0], head, context or found[0].context, found[1])

    def shed(self, known: CachedHead) -> HttpReply | None:
        """Return the refusal of an overloaded worker, or `None` if it admits the request.

        Call this after `shedder.add_request` has returned true for the request.
        """
        return self.shedder.refuse(known.match.route, known.options, known.own_lines)

    def answer(
        self,
        found: FoundHead,
        body: bytes,
        on_reply: OnReply,
        refusal: GatewayError | None = None,
    ) -> HttpReply | RequestState:
        """Return the answer to a request, or its state if `on_reply` gets the answer.

        Equal requests replay a plain memory hit from now on.
        """
        head = found.known
        state = self._new_state(head, found.context)
        if refusal is not None:
            return self._processor.failed(state, refusal)
        reply = self.core.answer(state, body, on_reply)
        parsed, may_repeat = state.parsed, head.is_plain and not found.context
        if state.replay is not None:
            self.heads.add_replayable(found.head + body, state.replay)
        elif may_repeat and parsed is not None and parsed.stored is not None:
            self.heads.add_repeated(found, body, parsed)
        return reply or state

    def _new_state(self, head: CachedHead, context: str) -> RequestState:
        state = self._processor.new_state(head.match)
        state.principal = head.principal
        state.options = head.options
        if head.is_plain:
            state.is_plain = True
        state.wants_timing = head.wants_timing
        if head.coding:
            state.coding = head.coding
        if head.own_lines:
            state.own_lines, state.client_id = head.own_lines, head.client_id
        if head.fields:
            state.fields = head.fields
        if context or self._is_traced:
            self._processor.start_span(state, context)
        # As `on_head_read`, which would be another call.
        state.is_body_due = False
        state.deadline = state.started + head.options.allowed
        return state

    def _find_without_context(
        self, request: bytes
    ) -> tuple[HitReplay | RepeatedRequest | None, str]:
        """Return what is known of a request without its trace context, and the context."""
        context, rest = self._split(request)
        was_looked_up = not self._splits_first
        # The next request is most likely of this kind, too: one look-up for each suffices.
        self._splits_first = rest is not request
        if rest is request and was_looked_up:
            return None, ""
        return self.heads.find_replayable(rest), context

    def _is_recorded(self, context: str) -> bool:
        """Return whether a hit with a trace context is recorded: its context alone decides."""
        if self._samples(context):
            return True
        if self._hits.until_noted == 1:
            self._hits.skip_recorded()
        return False

    def _prepare(self, server_lines: bytes) -> None:
        """Make the beginning of answers. Its date changes each second."""
        self._server_lines = server_lines
        self._hit_lines = STATUS_LINE[200] + self._server_lines + HIT
