"""Records spans of memory hits that the fast path replays, where tracing is on."""

from random import getrandbits
from time import time_ns

from typing_extensions import override

from gateway.api.fast_path.head_cache import RequestHeadCache
from gateway.api.fast_path.protocol import FastPath
from gateway.api.http import Headers
from gateway.api.request_processor import MEMORY, RequestProcessor
from gateway.api.request_state import ParsedBody
from gateway.telemetry.tracing import OtelTracer

_ID = b"x-request-id: "


def build_fast_path(processor: RequestProcessor, heads: RequestHeadCache) -> FastPath:
    """Return the fast path, one that records spans where the processor's tracer does."""
    if isinstance(processor.tracer, OtelTracer):
        return TracedFastPath(processor=processor, heads=heads, tracer=processor.tracer)
    return FastPath(processor=processor, heads=heads)


class TracedFastPath(FastPath):
    """A fast path that decides first whether a request is recorded.

    What is not recorded is answered as without tracing.
    """

    def __init__(
        self, *, processor: RequestProcessor, heads: RequestHeadCache, tracer: OtelTracer
    ) -> None:
        super().__init__(processor=processor, heads=heads)
        self._tracer = tracer
        self._bound = tracer.sampler.bound

    @override
    def replay(self, request: bytes, server_headers: Headers) -> bytes | None:
        context = ""
        parsed = self.heads.find_replayable(request)
        if parsed is None:
            parsed, context = self._find_without_context(request)
            if parsed is None:
                return None
        if server_headers is not self._server_headers:
            self._prepare(server_headers)
        # As `HeadSampler.samples`; most requests have no context.
        if self._tracer.sampler.samples(context) if context else getrandbits(64) < self._bound:
            return self._replay_recorded(parsed, context)
        return self._hits.replay(parsed, self._hit_lines)

    def _replay_recorded(self, parsed: ParsedBody, context: str) -> bytes | None:
        replay = parsed.replay
        times = [time_ns()]
        answer = self._hits.replay(parsed, self._hit_lines, times)
        if answer is None or replay is None:
            return None  # it is answered in another way, and decided about again
        route = parsed.route
        span = self._tracer.sampled_request(
            route.span_name, context, route.attributes, started=times[0]
        )
        span.record("cache lookup", times[0], times[1], MEMORY)
        span.record("admission", times[1], times[2])
        start = answer.index(_ID) + len(_ID)
        span.set("http.response.status_code", 200)
        span.set("sluicegate.request_id", answer[start : answer.index(b"\r", start)].decode())
        span.set("sluicegate.model", replay.model)
        span.set("sluicegate.items", 1)
        span.end()
        return answer
