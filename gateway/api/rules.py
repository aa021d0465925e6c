"""What becomes of a request to an inference route, whichever door it came through.

A door reads bytes and sends bytes. In between it asks the rules: `read_head`, then `reply_now` with
the body, and where that has to wait for somebody `reply_later`, or first `seek`, which needs no
task. What is decided, charged, counted, kept as an event and said in headers is decided here, once
for all doors.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from backends.protocol import Task
from gateway.api.answers import (
    HIT,
    JSON,
    PRIVATE,
    cache_lines,
    count_usage,
    encode_answer,
    failed_usage,
    first_failure,
    row_lines,
)
from gateway.api.bodies import BodyReader
from gateway.api.http import HttpReply, check_length
from gateway.api.problem_details import encode_problem, problem_lines
from gateway.api.request_headers import read_headers
from gateway.api.request_state import HitReplay, RequestIds, RequestState
from gateway.auth.bearer import bearer_token
from gateway.auth.key_ring import KeyRing
from gateway.cache.entry import CacheHit
from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    InternalError,
    MethodNotAllowed,
    PermissionDenied,
    UpstreamUnavailable,
)
from gateway.events.base import EventPublisher
from gateway.events.hit_run import HitRun
from gateway.http.write_coalescing import CLOSE
from gateway.inference.inference import Inference
from gateway.inference.prepared_request import PreparedRequest
from gateway.rate_limit.base import Decision, RateLimiter
from gateway.rate_limit.headers import rate_limit_lines
from gateway.rate_limit.refusals import beyond_limit
from gateway.runtime.runtime import Runtime
from gateway.runtime.store import RuntimeStore
from gateway.telemetry.metrics import GatewayMetrics
from gateway.types import (
    Answer,
    Caller,
    Principal,
    Source,
    Usage,
)

_log = logging.getLogger(__name__)
_MOST_REMEMBERED = 4096


class InferenceRules:
    """What the inference routes share. One per worker."""

    def __init__(
        self,
        *,
        runtimes: RuntimeStore,
        keys: KeyRing,
        limiter: RateLimiter,
        inference: Inference,
        events: EventPublisher,
        metrics: GatewayMetrics,
        ids: RequestIds,
        loop_time: Callable[[], float],
        wall: Callable[[], int] = time.time_ns,
        region: str = "",
    ) -> None:
        self._region = region
        self._runtimes = runtimes
        self._keys = keys
        self._limiter = limiter
        self._inference = inference
        self._events = events
        self._metrics = metrics
        self._ids = ids
        self._now = loop_time
        self._wall = wall
        self._bodies = BodyReader()
        self._runtime: Runtime | None = None
        self._runs: dict[tuple[Principal, Task, str, str, bool], HitRun] = {}

    def exchange(self, task: Task) -> RequestState:
        """Return a new exchange, under the current runtime and an id of its own."""
        return RequestState(
            self._ids.new(), task=task, runtime=self._runtimes.current, started=self._now()
        )

    def read_head(
        self, exchange: RequestState, method: str, headers: Mapping[bytes, bytes]
    ) -> None:
        """Find out who asks and for what, by the request's headers (names in lower case).

        Raises:
            GatewayError: the request ends here; see `failed`.
        """
        document = exchange.runtime.document
        exchange.expects = bool(headers.get(b"expect"))
        exchange.wants_timing = bool(headers.get(b"x-server-timing"))
        if method != "POST":
            raise MethodNotAllowed("Use POST for this route.")
        key = bearer_token(headers.get(b"authorization", b""))
        exchange.principal = self._keys.find(key)
        if exchange.principal is None:
            raise self._keys.refusal(key)
        check_length(headers.get(b"content-length", b""), limit=document.request.max_body_bytes)
        exchange.asked = read_headers(headers, document.deadline)

    async def read_large(self, exchange: RequestState, model: str, raw: bytes) -> None:
        """Read a body that would hold the event loop, before `reply_now` is given it.

        Raises:
            GatewayError: the request ends here; see `failed`.
        """
        try:
            async with asyncio.timeout_at(exchange.deadline):
                exchange.reading = await self._bodies.read_large(exchange, model, raw)
        except TimeoutError as error:
            raise DeadlineExceeded("The body could not be read in time.") from error

    def reply_now(self, exchange: RequestState, model: str, raw: bytes) -> HttpReply | None:
        """Return the whole answer, its event published, or `None` where it has to be waited for.

        `model` is that of the path, where one is; `raw` the request's body.
        """
        try:
            reading = exchange.reading
            if reading is None:
                reading = exchange.reading = self._bodies.read(exchange, model, raw)
            exchange.usage = reading.failed
            decision = exchange.decision = self._limiter.try_admit(reading.charges)
            if decision is None:
                return None
            job = exchange.job = self._admitted(exchange, decision)
            directives = exchange.asked.directives
            if reading.repeat is not None:
                entry, age = self._inference.peek(job, directives)
                if entry is reading.repeat.entry:
                    return self._repeated(exchange, reading.repeat, age)
            answer = self._inference.from_memory(job, directives)
            return None if answer is None else self._hit(exchange, job, answer)
        except Exception as error:  # noqa: BLE001 - one request's fault must not end the worker
            return self.failed(exchange, error)

    def seek(self, exchange: RequestState, told: Callable[[HttpReply | None], object]) -> bool:
        """Ask the cache for an exchange that `reply_now` could not answer.

        `told` is called in a later turn with the whole answer, or `None` where `reply_later` has
        to go on. Return `False` where that has to at once: the limits have to be asked, or caller
        or document want nothing from the cache.
        """
        job, directives = exchange.job, exchange.asked.directives
        if job is None or not job.may_read(directives):
            return False

        def found(entries: list[CacheHit | None]) -> None:
            reply = None
            try:
                reply = self._found(exchange, job, entries)
            finally:
                told(reply)

        self._inference.seek(job, found)
        return True

    async def reply_later(self, exchange: RequestState) -> HttpReply:
        """Return the whole answer to an exchange that `reply_now` could not answer."""
        try:
            job = exchange.job
            if job is None:
                exchange.decision = await self._ask_limiter(exchange)
                job = exchange.job = self._admitted(exchange, exchange.decision)
            principal, _ = exchange.known()
            caller = Caller(
                principal=principal,
                deadline=exchange.deadline,
                directives=exchange.asked.directives,
                traceparent=exchange.traceparent,
                criticality=exchange.asked.criticality,
            )
            answer = await self._inference.infer(job, caller, exchange.outcomes)
            return self._answered(exchange, answer)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as above
            return self.failed(exchange, error)

    def failed(self, exchange: RequestState, error: BaseException) -> HttpReply:
        """Return the problem that `error` is; failures are events too, and cost nothing."""
        known = _known(exchange, error)
        if exchange.job is not None:
            exchange.model = exchange.job.model.info.name
        exchange.fail(known, failed_usage(exchange.usage.items))
        try:
            self._publish(exchange)
        except GatewayError as unpublished:
            known = unpublished
            exchange.fail(known, exchange.usage)
            self._metrics.request(exchange.task, exchange.status, self._now() - exchange.started)
        exchange.lines = problem_lines(known)
        return self._reply(exchange, encode_problem(known, exchange.id))

    async def _ask_limiter(self, exchange: RequestState) -> Decision:
        _, reading = exchange.known()
        try:
            async with asyncio.timeout_at(exchange.deadline):
                return await self._limiter.admit(reading.charges)
        except TimeoutError as error:
            raise DeadlineExceeded("The limits could not be asked in time.") from error

    def _admitted(self, exchange: RequestState, decision: Decision) -> PreparedRequest:
        """Return the work of a request that is within its limits and its key's rights."""
        exchange.admitted = self._now()
        if not decision.allowed:
            self._metrics.rate_limited(decision.violated.name if decision.violated else "unknown")
            raise beyond_limit(decision)
        for watched in decision.shadowed:
            self._metrics.shadowed(watched.name)
        principal, reading = exchange.known()
        job = reading.job
        if job is not None and self._inference.holds(job, exchange.runtime):
            return job
        request = reading.request
        if principal.models is not None and request.model not in principal.models:
            raise PermissionDenied(f"This key may not use the model `{request.model}`.")
        reading.repeat = None
        reading.job = job = self._inference.prepare(request, principal, exchange.runtime)
        return job

    def _answered(self, exchange: RequestState, answer: Answer) -> HttpReply:
        _, reading = exchange.known()
        exchange.model = answer.model.info.name
        exchange.revision = answer.model.info.revision
        continues = reading.request.continue_on_error
        failure = first_failure(answer, continue_on_error=continues)
        if failure is not None:
            raise failure
        exchange.usage = count_usage(answer.outcomes)
        lines = JSON + cache_lines(answer, exchange.asked.directives) + row_lines(answer)
        body = encode_answer(reading.body, answer, exchange.usage)
        # Last: what fails before has an event of its own.
        self._publish(exchange)
        exchange.lines = lines
        return self._reply(exchange, body)

    def _found(
        self, exchange: RequestState, job: PreparedRequest, found: list[CacheHit | None]
    ) -> HttpReply | None:
        """Return the whole answer, `None` where some item is not in the cache."""
        try:
            directives = exchange.asked.directives
            outcomes = exchange.outcomes = self._inference.hits(job, found, directives)
            hits = [outcome for outcome in outcomes if outcome is not None]
            if len(hits) < len(outcomes):
                return None
            return self._answered(exchange, Answer(model=job.model, outcomes=hits))
        except Exception as error:  # noqa: BLE001 - one request's fault must not end the worker
            return self.failed(exchange, error)

    def _hit(self, exchange: RequestState, job: PreparedRequest, answer: Answer) -> HttpReply:
        """Answer, and let the next request that says the same and finds the same repeat it."""
        reply = self._answered(exchange, answer)
        if len(answer.outcomes) > 1 or answer.outcomes[0].source is not Source.HIT:
            return reply
        _, reading = exchange.known()
        entry, _ = self._inference.peek(job, exchange.asked.directives)
        run = self._run(exchange)
        if entry is None or run is None:
            return reply
        reading.repeat = HitReplay(
            entry=entry,
            model=exchange.model,
            revision=exchange.revision,
            usage=exchange.usage,
            body=reply.body,
            tail=b"content-length: %d\r\n\r\n%b" % (len(reply.body), reply.body),
            run=run,
        )
        return reply

    def _run(self, exchange: RequestState) -> HitRun | None:
        """Return the run of all memory hits like this one."""
        principal, _ = exchange.known()
        # Hits of texts that were cut are counted as such.
        is_truncated = exchange.usage.truncated > 0
        name = (principal, exchange.task, exchange.model, exchange.revision, is_truncated)
        if exchange.runtime is not self._runtime:
            self._runtime = exchange.runtime
            self._runs.clear()
        run = self._runs.get(name)
        if run is None:
            event = exchange.event(wall=self._wall, now=self._now(), region=self._region)
            if event is None:
                return None
            if len(self._runs) >= _MOST_REMEMBERED:
                self._runs.clear()
            run = self._runs[name] = HitRun(event)
        return run

    def _repeated(self, exchange: RequestState, repeat: HitReplay, age: float) -> HttpReply:
        """Answer as the last time: all but id, times and limits is the same."""
        duration = self._now() - exchange.started
        event = repeat.run.event
        self._events.set_aside(event.size)
        self._events.publish_encoded(event.payload(exchange.id, self._wall(), duration, 1))
        self._metrics.request(exchange.task, 200, duration)
        self._metrics.items(repeat.model, Source.HIT, 1)
        exchange.model, exchange.revision = repeat.model, repeat.revision
        exchange.usage = repeat.usage
        exchange.lines = b"%b%d\r\n" % (HIT, age)
        return self._reply(exchange, repeat.body)

    def _publish(self, exchange: RequestState) -> None:
        """Put the event on disk: an answer without one must not leave."""
        now = self._now()
        event = exchange.event(wall=self._wall, now=now, region=self._region)
        if event is not None:
            self._events.publish(event)
        self._metrics.request(exchange.task, exchange.status, now - exchange.started)
        if exchange.model:
            self._count(exchange.model, exchange.usage)

    def _count(self, model: str, usage: Usage) -> None:
        for source, count in (
            (Source.HIT, usage.hit),
            (Source.COLLAPSED, usage.collapsed),
            (Source.COMPUTED, usage.computed),
            (Source.FAILED, usage.failed),
        ):
            if count:
                self._metrics.items(model, source, count)
        if usage.rows:
            self._metrics.work(model, rows=usage.rows, tokens=usage.tokens)

    def _reply(self, exchange: RequestState, body: bytes) -> HttpReply:
        """Return the answer with the headers that every answer has."""
        lines = b"%bx-request-id: %b%b" % (exchange.lines, exchange.id.encode(), PRIVATE)
        if exchange.decision is not None:
            lines += rate_limit_lines(exchange.decision)
        if exchange.is_body_due and exchange.expects:
            # What comes next may be the body or another request; nobody can tell.
            lines += CLOSE
        if exchange.wants_timing:
            lines += _server_timing(exchange, self._now())
        return HttpReply(exchange.status, lines, body)


def _known(exchange: RequestState, error: BaseException) -> GatewayError:
    """Return `error` in the gateway's terms; a fault of ours is logged with the request's id."""
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, asyncio.CancelledError):
        # Only the server cancels a request: its time to let them end is over.
        return UpstreamUnavailable("The gateway is stopping; try again.", retry_after=1.0)
    _log.error("unexpected failure", exc_info=error, extra={"request_id": exchange.id})
    return InternalError("This is our fault; report it with the `request_id`.")


def _server_timing(exchange: RequestState, now: float) -> bytes:
    admission = (exchange.admitted - exchange.started) * 1000
    total = (now - exchange.started) * 1000
    steps = {"admission": admission, "inference": total - admission, "total": total}
    value = ", ".join(f"{name};dur={duration:.2f}" for name, duration in steps.items())
    return b"server-timing: %b\r\n" % value.encode()
