"""Records spans of memory hits that the fast path replays, where tracing is on."""

from time import time_ns

from typing_extensions import override

from gateway.api.fast_path.answering import FastPath
from gateway.api.fast_path.head_cache import RepeatedRequest, RequestHeadCache
from gateway.api.http import Headers
from gateway.api.load_shedding import LoadShedder
from gateway.api.request_processor import RequestProcessor
from gateway.api.request_state import ParsedBody
from gateway.telemetry.tracing import ReplayedHit

_ID = b"x-request-id: "


def build_fast_path(
    processor: RequestProcessor, heads: RequestHeadCache, shedder: LoadShedder
) -> FastPath:
    """Return the fast path, one that records spans where the processor's tracer does."""
    kind = TracedFastPath if processor.tracer.is_on else FastPath
    return kind(processor=processor, heads=heads, shedder=shedder)


class TracedFastPath(FastPath):
    """A fast path that decides first whether a request is recorded.

    What is not recorded is answered as without tracing.
    """

    def __init__(
        self, *, processor: RequestProcessor, heads: RequestHeadCache, shedder: LoadShedder
    ) -> None:
        super().__init__(processor=processor, heads=heads, shedder=shedder)
        self._tracer = processor.tracer
        self._samples = processor.tracer.samples
        self._left = processor.tracer.gap()

    @override
    def replay(self, request: bytes, server_headers: Headers) -> bytes | RepeatedRequest | None:
        context = ""
        parsed = None if self._splits_first else self.heads.find_replayable(request)
        if parsed is None:
            parsed, context = self._find_without_context(request)
            if parsed is None:
                return None
        if isinstance(parsed, RepeatedRequest):
            return None if context else parsed  # `repeat` decides whether it is recorded
        if server_headers is not self._server_headers:
            self._prepare(server_headers)
        if context:
            if self._samples(context):
                return self._replay_recorded(parsed, context)
        else:
            self._left -= 1
            if not self._left:
                self._left = self._tracer.gap()
                return self._replay_recorded(parsed, "")
        return self._hits.replay(parsed, self._hit_lines)

    def _replay_recorded(self, parsed: ParsedBody, context: str) -> bytes | None:
        replay = parsed.replay
        times = [time_ns()]
        answer = self._hits.replay(parsed, self._hit_lines, times)
        if answer is None or replay is None:
            return None  # it is answered in another way, and decided about again
        route = parsed.route
        start = answer.index(_ID) + len(_ID)
        request_id = answer[start : answer.index(b"\r", start)]
        times.append(time_ns())
        model, revision = replay.model, replay.revision
        hit = ReplayedHit(route.span_name, route.attributes, model, revision, request_id, times)
        self._tracer.replayed(hit, context)
        if context:  # else its trace has no id yet
            self.hit_events.sampled_hit(replay.run, (times[-1] - times[0]) / 1e9, context)
        return answer
