"""Answers one-item requests whose result came from a tier other than memory, with little work.

The result is put into the answer as it is stored.
"""

from gateway.api.answers import count_usage
from gateway.api.inference_route import InferenceRoute
from gateway.api.recent_cache import RecentCache
from gateway.api.request_events import RequestEvents
from gateway.api.request_state import RequestState, StoredAnswers
from gateway.cache.entry import CacheHit
from gateway.events.hit_run import HitRun
from gateway.http.unsent_answers import LARGE_BYTES
from gateway.inference.inference import Inference
from gateway.inference.prepared_request import PreparedRequest, RequestPlan
from gateway.runtime.runtime import Runtime
from gateway.types import Answer, ItemOutcome, Principal, Source

_MOST = 4096
_OK = 200
_RESULT = b"\0"
"""Stands for a result, because JSON does not contain this byte."""
_Key = tuple[Principal, InferenceRoute, str, str, str]


class StoredHits:
    """Answers hits from Redis. Each worker's event loop has one."""

    def __init__(self, *, inference: Inference, events: RequestEvents) -> None:
        self._events = events
        self._wall = inference.wall
        self._runtime: Runtime | None = None
        self._answers: RecentCache[_Key, StoredAnswers] = RecentCache(_MOST)

    def answer(self, state: RequestState, prepared: PreparedRequest, hit: CacheHit) -> bytes | None:
        """Return the body of a one-item answer from a tier. Its usage event joins a run.

        The caller must call `RequestEvents.commit` before it writes the answer. If the answer is
        not simply the stored result, return `None` and do nothing.
        """
        entry, plan = hit.entry, prepared.plan
        now = self._wall()
        if entry.status != _OK or entry.truncated_from or entry.arm:
            return None
        if len(entry.payload) > LARGE_BYTES:
            return None  # a thread encodes it
        if not plan.is_valid(entry, now, state.options.directives.max_age):
            return None
        _, parsed = state.caller_and_body()
        answers, info = parsed.stored, plan.model.info
        if (
            answers is None
            or answers.runtime is not state.runtime
            or answers.revision != info.revision
            or answers.tier != hit.tier
        ):
            answers = parsed.stored = self._answers_like(state, plan, hit.tier)
            if answers is None:
                return None
        body = b"%b%b%b" % (answers.start, entry.payload, answers.end)
        run = answers.run
        if run.count == run.max_count and not self._events.join(run):
            return None
        run.started = min(run.started, state.started)
        run.began = min(run.began, state.began)
        state.id = self._events.ids.numbered(run.add())
        state.model, state.revision, state.usage = info.name, info.revision, answers.usage
        state.lines = b"%b%d\r\n" % (answers.lines, max(0.0, now - entry.stored_at))
        state.content = answers.content
        return body

    def _answers_like(
        self, state: RequestState, plan: RequestPlan, tier: str
    ) -> StoredAnswers | None:
        """Return the common parts of answers by `plan` from `tier`, or `None` if there are none."""
        principal, parsed = state.caller_and_body()
        info = plan.model.info
        if not state.route.is_spliced(parsed.body):
            return None
        if state.runtime is not self._runtime:
            self._runtime = state.runtime
            self._answers.clear()
        name = (principal, state.route, info.name, info.revision, tier)
        found = self._answers.get(name)
        if found is None:
            outcome = ItemOutcome(source=Source.HIT, result=_RESULT)
            usage = count_usage([outcome])
            answer = Answer(model=plan.model, outcomes=[outcome])
            rendered = state.route.encode(parsed.body, answer, usage, state.id)
            start, _, end = rendered.body.partition(_RESULT)
            state.model, state.revision, state.usage = info.name, info.revision, usage
            event = self._events.event_of(state)
            if event is None:
                return None
            lines = b"cache-status: sluicegate; hit; detail=%b\r\nage: " % tier.encode()
            run = HitRun(event, route=state.route.metric_name, source=f"{tier}_hit")
            found = StoredAnswers(
                runtime=state.runtime,
                revision=info.revision,
                tier=tier,
                run=run,
                usage=usage,
                start=start,
                end=end,
                lines=lines,
                content=rendered.lines,
            )
            self._answers.put(name, found)
        return found
