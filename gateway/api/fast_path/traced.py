"""Records spans of memory hits that the fast path replays, where tracing is on."""

from typing_extensions import override

from gateway.api.fast_path.answering import FastPath
from gateway.api.fast_path.head_cache import RepeatedRequest, RequestHeadCache
from gateway.api.load_shedding import LoadShedder
from gateway.api.request_processor import RequestProcessor


def build_fast_path(
    processor: RequestProcessor, heads: RequestHeadCache, shedder: LoadShedder
) -> FastPath:
    """Return the fast path, one that records spans where the processor's tracer does."""
    kind = TracedFastPath if processor.tracer.is_on else FastPath
    return kind(processor=processor, heads=heads, shedder=shedder)


class TracedFastPath(FastPath):
    """A fast path that records hits whose trace context is sampled.

    Which of those without a context are recorded is counted down to by `MemoryHits`, with what it
    measures: the others are answered as without tracing.
    """

    def __init__(
        self, *, processor: RequestProcessor, heads: RequestHeadCache, shedder: LoadShedder
    ) -> None:
        super().__init__(processor=processor, heads=heads, shedder=shedder)
        self._samples = processor.tracer.samples

    @override
    def replay(self, request: bytes, server_lines: bytes) -> bytes | RepeatedRequest | None:
        context = ""
        parsed = None if self._splits_first else self.heads.find_replayable(request)
        if parsed is None:
            parsed, context = self._find_without_context(request)
            if parsed is None:
                return None
        if server_lines is not self._server_lines:
            self._prepare(server_lines)
        if context:
            if self._samples(context):
                return self._hits.replay_recorded(parsed, self._hit_lines, context)
            if self._hits.until_noted == 1:
                self._hits.skip_recorded()
        answer = self._hits.replay(parsed, self._hit_lines)
        if answer is None and not context and isinstance(parsed, RepeatedRequest):
            return parsed  # `repeat` decides whether it is recorded
        return answer
