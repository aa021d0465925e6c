"""Answers one-item requests that are hits with little work.

A plain one-item request that was a memory hit leaves a `HitReplay`. The fast path calls `replay`
for requests with equal bytes, while the cache returns the same entry. A result from another tier is
put into the answer as it is stored.
"""

from collections.abc import Sequence
from time import time_ns

from sluicegate.gateway.api.answers import PLAIN_HIT, PRIVATE, usage_of_hit
from sluicegate.gateway.api.content_coding import SMALLEST
from sluicegate.gateway.api.inference_route import InferenceRoute
from sluicegate.gateway.api.recent_cache import RecentCache
from sluicegate.gateway.api.request_events import RequestEvents
from sluicegate.gateway.api.request_state import HitReplay, RequestState, StoredAnswers
from sluicegate.gateway.cache.entry import CacheHit
from sluicegate.gateway.events.hit_run import HitRun
from sluicegate.gateway.http.unsent_answers import LARGE_BYTES
from sluicegate.gateway.inference.inference import Inference
from sluicegate.gateway.inference.prepared_request import PreparedRequest, RequestPlan
from sluicegate.gateway.rate_limit.base import RateLimiter
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.telemetry.guard_verdicts import Counts
from sluicegate.gateway.telemetry.phases import PhaseDurations
from sluicegate.gateway.telemetry.tracing import ReplayedHit, Tracer
from sluicegate.gateway.types import Answer, ItemOutcome, Principal, RevisionUsage, Source, Usage
from sluicegate.wire.protocol import Task

_MOST = 4096
"""The callers and models whose runs, or common parts of answers, are kept."""
MEASURED_ONE_OF = 64
"""One of this many repeated hits has its phases measured, and its verdict sampled."""
_OK = 200
_RESULT = b"\0"
"""Stands for a result, because JSON does not contain this byte."""
_RunKey = tuple[Principal, InferenceRoute, Task, str, str, Usage, tuple[RevisionUsage, ...], Counts]
_StoredKey = tuple[Principal, InferenceRoute, str, str, str]


class MemoryHits:
    """Replays memory hits. Each worker's event loop has one."""

    def __init__(
        self,
        *,
        runtimes: RuntimeStore,
        inference: Inference,
        limiter: RateLimiter,
        events: RequestEvents,
        phases: PhaseDurations,
        tracer: Tracer,
    ) -> None:
        self.events = events
        self._runtimes = runtimes
        self._inference = inference
        self._wall, self._peek, self._served = inference.wall, inference.peek, inference.served
        self._limiter = limiter
        self._phases = phases
        self._tracer = tracer
        # `_until_noted` counts down from `_step` to whichever of these two comes first. It is 1
        # before a hit that is measured or recorded.
        self._until_measured = MEASURED_ONE_OF
        self._until_recorded = tracer.gap()
        self._until_noted = self._step = min(self._until_measured, self._until_recorded)
        self._id_prefix = events.ids.prefix.encode()
        self._runtime: Runtime | None = None
        self._runs: RecentCache[_RunKey, HitRun] = RecentCache(_MOST)

    def replay(
        self, replay: HitReplay, head: bytes, times: list[int] | None = None
    ) -> bytes | None:
        """Return the whole answer to a request that is equal to an earlier one.

        The answer begins with `head`.

        `times` receives the times of the cache look-up and of the charge of limits, in ns.

        The usage event is published together with the iteration's other events. If there is no
        answer to replay or the answer may have changed, return `None` and charge nothing.
        """
        if times is None:
            self._until_noted -= 1
            if not self._until_noted:
                return self._replay_noted(replay, head)
        run = replay.run
        if run.count == run.max_count and not self.events.join(run):
            return None
        hit = self._charged(replay, times)
        if hit is None:
            self.events.commit()  # the run may have been joined for nothing
            return None
        age, limit_lines = hit
        number = run.first + run.count
        run.count += 1  # as `HitRun.add`, which would be another call
        return b"%b%d\r\nx-request-id: %b%010x%b%b%b" % (
            head,
            age,
            self._id_prefix,
            number,
            PRIVATE,
            limit_lines,
            replay.tail,
        )

    def replay_traced(self, replay: HitReplay, head: bytes, context: str) -> bytes | None:
        """Do as `replay` for a request whose trace `context` alone says whether it is recorded."""
        if not self._tracer.samples(context):
            if self._until_noted == 1 and self._until_recorded == self._step:
                self._until_recorded += self._tracer.gap()  # another one is drawn in its place
            return self.replay(replay, head)
        times = [time_ns()]
        answer = self.replay(replay, head, times)
        if answer is not None:
            self._measure(times, 1)
            self._record(replay, answer, times, context)
        return answer

    def _replay_noted(self, replay: HitReplay, head: bytes) -> bytes | None:
        """Replay a hit, and measure it on behalf of unmeasured hits, or record it, or both."""
        self._until_measured -= self._step
        self._until_recorded -= self._step
        is_measured, is_recorded = not self._until_measured, not self._until_recorded
        if is_measured:
            self._until_measured = MEASURED_ONE_OF
        if is_recorded:
            self._until_recorded = self._tracer.gap()
        self._until_noted = self._step = min(self._until_measured, self._until_recorded)
        times = [time_ns()]
        answer = self.replay(replay, head, times)
        if answer is None:
            return None  # the request is answered in another way, which samples it again
        if is_measured:
            self._measure(times, MEASURED_ONE_OF)
            if replay.verdicts is not None:
                self.events.sampled_verdicts(replay.verdicts)
        if is_recorded:
            self._record(replay, answer, times, "")
        return answer

    def _measure(self, times: Sequence[int], count: int) -> None:
        """Count the phases of a hit `count` times."""
        began, found, charged = times
        self._phases.add("cache", (found - began) / 1e9, count)
        self._phases.add("admission", (charged - found) / 1e9, count)

    def _record(self, replay: HitReplay, answer: bytes, times: list[int], context: str) -> None:
        """Record the spans of a hit."""
        route = replay.route
        times.append(time_ns())
        model, revision = replay.run.model, replay.run.revision
        hit = ReplayedHit(route.span_name, route.attributes, model, revision, answer, times)
        self._tracer.replayed(hit, context)
        if context:  # else its trace has no id yet
            self.events.sampled_hit(replay.run, (times[-1] - times[0]) / 1e9, context)

    def replay_of(self, state: RequestState, answer: Answer, body: bytes) -> HitReplay | None:
        """Return what replays an answer from memory. `None` if it must not be replayed."""
        _, parsed = state.caller_and_body()
        prepared = parsed.prepared
        # Large ones are compressed for some callers, and many of them take much memory.
        if prepared is None or len(answer.outcomes) > 1 or len(body) >= SMALLEST:
            return None
        if answer.outcomes[0].source is not Source.HIT:
            return None
        entry = self._inference.entry_of(prepared.keys[0])
        # A plan is of one runtime, under which only time and the cache change what is valid.
        if entry is None or not prepared.plan.is_valid(entry, self._wall()):
            return None
        run = self._run(state)
        if run is None:
            return None
        return HitReplay(
            route=state.route,
            models_version=(self._inference.models_version() if state.route.reads_models else None),
            plan=prepared.plan,
            key=prepared.keys[0],
            entry=entry,
            valid_until=entry.stored_at + prepared.plan.entry.cache_ttl,
            tail=b"%bcontent-length: %d\r\n\r\n%b" % (state.content, len(body), body),
            run=run,
            charge=self._limiter.repeated_charge(parsed.charges),
            verdicts=state.verdicts,
        )

    def _charged(self, replay: HitReplay, times: list[int] | None) -> tuple[float, bytes] | None:
        """Charge a request that `replay` answers; return the entry's age and the limits' lines."""
        plan, entry = replay.plan, replay.entry
        # As `is_current`, which would be another call for each hit.
        is_current = plan.runtime is self._runtimes.current
        if not is_current or plan.model is not self._served(plan.model.info.name):
            return None
        version = replay.models_version
        if version is not None and version != self._inference.models_version():
            return None
        now = self._wall()
        if self._peek(replay.key, now) is not entry or now > replay.valid_until:
            return None  # the entry has gone, is too old, or was replaced
        if times is not None:
            times.append(time_ns())
        limit_lines = replay.charge.charge()
        if times is not None:
            times.append(time_ns())
        if limit_lines is None:
            return None
        age = now - entry.stored_at
        return age if age > 0.0 else 0.0, limit_lines  # noqa: FURB136 - a call costs 1 % of a hit

    def _run(self, state: RequestState) -> HitRun | None:
        """Return the run of all memory hits like this one."""
        principal, _ = state.caller_and_body()
        counts = () if state.verdicts is None else state.verdicts.counts
        # The hits of a run are billed and counted alike, so all their numbers must be equal.
        name = (
            *(principal, state.route, state.task, state.model),
            *(state.revision, state.usage, state.arms, counts),
        )
        if state.runtime is not self._runtime:
            self._runtime = state.runtime
            self._runs.clear()
        run = self._runs.get(name)
        if run is None:
            event = self.events.event_of(state)
            if event is None:
                return None
            run = HitRun(event, route=state.route.metric_name, counts=counts)
            self._runs.put(name, run)
        return run


class StoredHits:
    """Answers hits from Redis. Each worker's event loop has one.

    It leaves hits that have another usage than `PLAIN_HIT` to `RequestState.sum_up`.
    """

    def __init__(self, *, inference: Inference, events: RequestEvents) -> None:
        self._events = events
        self._wall = inference.wall
        self._runtime: Runtime | None = None
        self._answers: RecentCache[_StoredKey, StoredAnswers] = RecentCache(_MOST)

    def answer(self, state: RequestState, prepared: PreparedRequest, hit: CacheHit) -> bytes | None:
        """Return the body of a one-item answer from a tier. Its usage event joins a run.

        The caller must call `RequestEvents.commit` before it writes the answer. If the answer is
        not simply the stored result, return `None` and do nothing.
        """
        entry, plan = hit.entry, prepared.plan
        now = self._wall()
        if entry.status != _OK or entry.arm or usage_of_hit(entry) is not PLAIN_HIT:
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
            or answers.run.revision != info.revision
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
        state.model, state.revision, state.usage = info.name, info.revision, PLAIN_HIT
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
            answer = Answer(model=plan.model, outcomes=[outcome])
            rendered = state.route.encode(parsed.body, answer, PLAIN_HIT, state.id)
            start, _, end = rendered.body.partition(_RESULT)
            state.model, state.revision, state.usage = info.name, info.revision, PLAIN_HIT
            event = self._events.event_of(state)
            if event is None:
                return None
            lines = b"cache-status: sluicegate; hit; detail=%b\r\nage: " % tier.encode()
            run = HitRun(event, route=state.route.metric_name, source=f"{tier}_hit")
            found = StoredAnswers(
                runtime=state.runtime,
                tier=tier,
                run=run,
                start=start,
                end=end,
                lines=lines,
                content=rendered.lines,
            )
            self._answers.put(name, found)
        return found
