"""Replays memory hits of one item to requests with equal bytes.

A plain one-item request that was a memory hit leaves a `HitReplay`. The fast path calls `replay`
for requests with equal bytes, while the cache returns the same entry.
"""

from collections.abc import Sequence
from time import time_ns

from gateway.api.answers import PRIVATE
from gateway.api.content_coding import SMALLEST
from gateway.api.inference_route import InferenceRoute
from gateway.api.recent_cache import RecentCache
from gateway.api.request_events import RequestEvents
from gateway.api.request_state import HitReplay, RequestState
from gateway.events.hit_run import HitRun
from gateway.inference.inference import Inference
from gateway.rate_limit.base import RateLimiter
from gateway.runtime.runtime import Runtime
from gateway.runtime.store import RuntimeStore
from gateway.telemetry.phases import PhaseDurations
from gateway.telemetry.tracing import ReplayedHit, Tracer
from gateway.types import (
    Answer,
    Principal,
    RevisionUsage,
    Source,
)
from wire.protocol import Task

_MOST_RUNS = 4096
MEASURED_ONE_OF = 64
"""One of this many repeated hits has its phases measured."""
_RunKey = tuple[Principal, InferenceRoute, Task, str, str, bool, tuple[RevisionUsage, ...]]


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
        # `until_noted` counts down from `_step` to whichever of these two comes first.
        self._until_measured = MEASURED_ONE_OF
        self._until_recorded = tracer.gap()
        self.until_noted = self._step = min(self._until_measured, self._until_recorded)
        """The number of hits until one is measured or recorded. 1 means the next hit."""
        self._id_prefix = events.ids.prefix.encode()
        self._runtime: Runtime | None = None
        self._runs: RecentCache[_RunKey, HitRun] = RecentCache(_MOST_RUNS)

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
            self.until_noted -= 1
            if not self.until_noted:
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

    def replay_recorded(self, replay: HitReplay, head: bytes, context: str) -> bytes | None:
        """Do as `replay` for a request whose trace `context` is sampled."""
        times = [time_ns()]
        answer = self.replay(replay, head, times)
        if answer is not None:
            self._measure(times, 1)
            self._record(replay, answer, times, context)
        return answer

    def skip_recorded(self) -> None:
        """Do not record the next hit, even if it was drawn.

        Call this only if `until_noted` is 1.
        """
        if self._until_recorded == self._step:
            self._until_recorded += self._tracer.gap()

    def _replay_noted(self, replay: HitReplay, head: bytes) -> bytes | None:
        """Replay a hit, and measure it on behalf of unmeasured hits, or record it, or both."""
        self._until_measured -= self._step
        self._until_recorded -= self._step
        is_measured, is_recorded = not self._until_measured, not self._until_recorded
        if is_measured:
            self._until_measured = MEASURED_ONE_OF
        if is_recorded:
            self._until_recorded = self._tracer.gap()
        self.until_noted = self._step = min(self._until_measured, self._until_recorded)
        times = [time_ns()]
        answer = self.replay(replay, head, times)
        if answer is None:
            return None  # the request is answered in another way, which samples it again
        if is_measured:
            self._measure(times, MEASURED_ONE_OF)
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
        model, revision = replay.model, replay.revision
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
            model=state.model,
            revision=state.revision,
            tail=b"%bcontent-length: %d\r\n\r\n%b" % (state.content, len(body), body),
            run=run,
            charge=self._limiter.repeated_charge(parsed.charges),
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
        # Hits of texts that were cut are counted as such.
        is_truncated = state.usage.truncated > 0
        name = (
            *(principal, state.route, state.task, state.model),
            *(state.revision, is_truncated, state.arms),
        )
        if state.runtime is not self._runtime:
            self._runtime = state.runtime
            self._runs.clear()
        run = self._runs.get(name)
        if run is None:
            event = self.events.event_of(state)
            if event is None:
                return None
            run = HitRun(event, route=state.route.metric_name)
            self._runs.put(name, run)
        return run
