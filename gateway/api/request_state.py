"""Holds the state of one request until its answer, for the headers and the usage event."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable

import msgspec

from sluicegate.gateway.api.answers import (
    backend_region,
    cache_lines,
    count_hits,
    count_refused,
    count_revisions,
    count_usage,
    failed_usage,
    first_failure,
    is_refusal,
    passing_failures,
    row_lines,
    usage_of_computed,
)
from sluicegate.gateway.api.http import HttpReply
from sluicegate.gateway.api.inference_route import JSON, InferenceRoute, Rendered, RequestBody
from sluicegate.gateway.api.request_headers import NO_OPTIONS
from sluicegate.gateway.cache.entry import CachedResult, CacheHit
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.errors import DeadlineExceeded, GatewayError, InternalError, InvalidItem
from sluicegate.gateway.events.hit_run import HitRun
from sluicegate.gateway.http.request_head import NO_ID
from sluicegate.gateway.inference.coalescing import ItemWaits
from sluicegate.gateway.inference.interfaces import LookupCallback
from sluicegate.gateway.inference.outcomes import PASSING_REFUSALS, describe_lookup
from sluicegate.gateway.inference.prepared_request import PreparedRequest, RequestPlan
from sluicegate.gateway.rate_limit.base import Charge, RepeatedCharge
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.telemetry.guard_verdicts import GuardVerdicts
from sluicegate.gateway.telemetry.spans import NO_SPAN
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.types import (
    ID_DIGITS,
    Answer,
    Caller,
    InferenceRequest,
    ItemOutcome,
    KeyId,
    Principal,
    RequestEvent,
    RequestId,
    RevisionUsage,
    Source,
    Usage,
)

OnReply = Callable[["RequestState", HttpReply], object]
"""Takes the answer to a request."""
# A member of an enumeration is looked up by a method in Python 3.11.
_COMPUTED = Source.COMPUTED
_STORED = b"cache-status: sluicegate; fwd=uri-miss; stored\r\n"
_STORED_ROWS = _STORED + b"sluicegate-rows: computed=%d, known=%d\r\n"
_NOTHING = failed_usage(0)


class HitReplay(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a plain one-item request that was a memory hit. Equal requests replay it.

    The answer is valid while `plan` is current and the cache returns this `entry`, until
    `valid_until`, a time on the wall clock.
    """

    route: InferenceRoute
    models_version: int | None
    """The version of the served models, if they decide what the request means."""
    plan: RequestPlan
    key: CacheKey
    entry: CachedResult
    valid_until: float
    tail: bytes
    """The constant end of the answer, from the header lines that say what the body is."""
    run: HitRun
    charge: RepeatedCharge
    verdicts: GuardVerdicts | None


class StoredAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the common parts of answers with a stored result, and counts their run.

    The answers go to one caller of one model under one `runtime`, from one tier. The result stands
    between `start` and `end` of the body. The age follows `lines`.
    """

    runtime: Runtime
    tier: str
    run: HitRun
    start: bytes
    end: bytes
    lines: bytes
    content: bytes


class ParsedBody(msgspec.Struct, kw_only=True):
    """A parsed request body. Shared by requests of one caller with equal bodies.

    `prepared` and `stored` are set later, and replaced when they are no longer valid.
    """

    body: RequestBody
    request: InferenceRequest
    charges: tuple[Charge, ...]
    length: int = 0
    """The bytes of the body."""
    held_bytes: int = 0
    """Bytes of the worker's memory budget that a large request holds. Other requests hold 0."""
    failed: Usage
    """The usage to report if the request fails as a whole."""
    prepared: PreparedRequest | None = None
    stored: StoredAnswers | None = None
    """The parts of the last answer whose result came from a tier other than memory."""


class RequestIds:
    """Makes ids that no other process makes: a random start for each process, then a count."""

    def __init__(self) -> None:
        self.prefix = "req_" + secrets.token_hex(8)
        self._next = 0

    def new(self) -> RequestId:
        """Return an id never given before."""
        number = self._next
        self._next = number + 1
        return RequestId(f"{self.prefix}{number:0{ID_DIGITS}x}")

    def reserve(self, count: int) -> int:
        """Return the first of `count` numbers whose ids `new` will not give."""
        number = self._next
        self._next = number + count
        return number

    def numbered(self, number: int) -> RequestId:
        """Return the id of a reserved number."""
        return RequestId(f"{self.prefix}{number:0{ID_DIGITS}x}")


class RequestState:
    """A request's identity and progress, which the usage event and the headers read.

    Defaults are class attributes, because a memory hit never writes most of them.
    """

    principal: Principal | None = None
    attempt: RequestId | None = None
    """The id of this attempt if the request or an item fails. `id` belongs to all attempts."""
    options = NO_OPTIONS
    expects = False
    """The caller waits for `100 Continue` before it sends the body."""
    wants_timing = False
    coding = ""
    """The content coding for a large answer. Empty means no compression."""
    on_reply: OnReply | None = None
    """Takes the answer, while callbacks are waited for."""
    waiter: asyncio.Task[HttpReply] | None = None
    """The task that answers the request, if the answer needs one."""
    own_lines = b""
    """Header lines for this caller: the permission for web pages, and the caller's own id."""
    caller_id = NO_ID
    """The caller's own id of the request."""
    publish: Callable[[RequestEvent, frozenset[int]], None] | None = None
    """Takes the request's usage event and `passing`. `None` means the worker's event log."""
    is_alone = False
    """Whether the request came by `Core.reply`.

    Its event may have an id or a publisher of its own, so it never joins a run of hits.
    """
    waits: ItemWaits | None = None
    """What the request waits for while its items are computed."""
    is_given_up = False
    """Whether the request was answered while its result was waited for. That is then dropped."""
    is_plain = False
    """Whether equal requests may replay the answer if it is a memory hit."""
    replay: HitReplay | None = None
    """The answer for equal requests, if they may replay it."""
    phase_weight = 1
    """The number of requests that its phases are counted for. With 0, another request counts."""
    is_body_due = True
    span = NO_SPAN
    """The span of the whole request."""
    parsed: ParsedBody | None = None
    limit_lines = b""
    prepared: PreparedRequest | None = None
    """The prepared request, once it is within its limits and its key's rights."""
    outcomes: list[ItemOutcome | None] | None = None
    """The outcomes of items found in the cache, after the look-up."""
    passing: frozenset[int] = frozenset()
    """The statuses of failed items in an answer that another try may answer."""
    model = ""
    revision = ""
    status = 200
    """The HTTP status in the route's dialect."""
    is_fault = False
    """Whether the request ended with an error that the caller did not cause."""
    is_passing = False
    """Whether the request ended with an error that another try may avoid."""
    code = ""
    usage = _NOTHING
    refused_items = 0
    """The number of failed items that failed without a fault."""
    backend_region = ""
    """The region of the backends that answered; see `RequestEvent`."""
    arms: tuple[RevisionUsage, ...] = ()
    hit_sources: tuple[tuple[str, int], ...] = ()
    """Counts of hits by their source in metrics."""
    verdicts: GuardVerdicts | None = None
    """What a guard said about the texts."""
    lines = b""
    answer_length = 0
    """The bytes of the answer's body."""
    answer: Answer | None = None
    """An answer that a thread will encode."""
    rendered: Rendered | None = None
    """The answer, if a thread has encoded it."""
    held_bytes = 0
    """Bytes of the budget that the answer holds under the caller's key."""
    content = JSON
    """The header lines that say what the body of the answer is."""
    parameters: tuple[str, ...] = ()
    """The parameters in the path."""
    fields: tuple[bytes, ...] = ()
    """The values of the route's `headers`."""

    def __init__(
        self,
        request_id: RequestId,
        *,
        route: InferenceRoute,
        runtime: Runtime,
        started: float,
        began: float = 0.0,
    ) -> None:
        self.id = request_id
        self.route = route
        self.task = route.task
        self.runtime = runtime
        self.started = self.admitted = self.deadline = started
        self.began = self.phase_began = began
        """The start of the request and of its present phase, on a finer clock than the loop's."""

    def on_head_read(self) -> None:
        """Set the deadline, and stop expecting `100 Continue`."""
        self.is_body_due = False
        self.deadline = self.started + self.options.allowed

    @contextlib.asynccontextmanager
    async def time_for(self, what: str) -> AsyncIterator[None]:
        """Let `what`, a noun for error messages, take until the deadline.

        Raises:
            DeadlineExceeded: it takes longer.
        """
        try:
            async with asyncio.timeout_at(self.deadline):
                yield
        except TimeoutError as error:
            raise DeadlineExceeded.during(what) from error

    def record_alone(self) -> None:
        """Record this attempt under its own id, because another attempt may end differently."""
        if self.attempt is not None:
            self.id = self.attempt

    def caller_and_body(self) -> tuple[Principal, ParsedBody]:
        """Return the caller and the body, both of which must have been read."""
        if self.principal is None or self.parsed is None:
            raise RuntimeError("the request has not been read yet")
        return self.principal, self.parsed

    def caller(self) -> Caller:
        """Return the caller as the backends' side needs it. The request must have been read."""
        if self.principal is None:
            raise RuntimeError("the request has not been read yet")
        span = self.span
        return Caller(
            principal=self.principal,
            deadline=self.deadline,
            directives=self.options.directives,
            traceparent="" if span is NO_SPAN else span.traceparent,
            criticality=self.options.criticality,
        )

    @property
    def has_own_event(self) -> bool:
        """Whether the request's usage event must not join a run of equal hits."""
        return self.caller_id is not NO_ID or self.is_alone

    @property
    def holder(self) -> KeyId | None:
        """The key that holds bytes of the budget for the answer, if any."""
        return self.principal.key if self.principal is not None and self.held_bytes else None

    def fail(self, error: GatewayError, usage: Usage) -> None:
        """Note that the request ends with `error`."""
        self.record_alone()
        self.status = self.route.errors.status(error)
        self.is_fault = error.status >= InternalError.status
        self.is_passing = self.is_fault or (
            isinstance(error, InvalidItem) and error.item_code in PASSING_REFUSALS
        )
        self.code = error.code
        self.usage, self.hit_sources = usage, ()
        self.refused_items = usage.failed if is_refusal(error) else 0

    def sum_up(self, answer: Answer, *, continue_on_error: bool) -> bytes:
        """Note what the items of the answer were. Return the header lines that say so.

        Raises:
            GatewayError: the request fails as a whole.
        """
        self.backend_region = backend_region(answer.outcomes)
        known = 0
        for outcome in answer.outcomes:
            if outcome.source is not _COMPUTED or outcome.truncated_from or outcome.arm:
                return self._sum_up_mixed(answer, continue_on_error=continue_on_error)
            known += outcome.known_rows
        self.usage = usage_of_computed(answer.outcomes)
        directives = self.options.directives
        if not answer.is_cacheable or directives.no_cache or directives.no_store:
            return cache_lines(answer, directives) + row_lines(answer)
        return _STORED_ROWS % (rows, known) if (rows := self.usage.rows) or known else _STORED

    def _sum_up_mixed(self, answer: Answer, *, continue_on_error: bool) -> bytes:
        outcomes = answer.outcomes
        failure = first_failure(
            answer,
            continue_on_error=continue_on_error,
            answers_failures=self.route.answers_failures,
        )
        if failure is not None:
            self.arms = count_revisions([one for one in outcomes if one.failure is not None])
            raise failure
        self.usage, self.arms = count_usage(outcomes), count_revisions(outcomes)
        if self.usage.hit:
            self.hit_sources = count_hits(outcomes)
        if self.usage.failed:
            self.refused_items = count_refused(outcomes)
            self.passing = passing_failures(answer)
            if self.passing:
                self.record_alone()
        return cache_lines(answer, self.options.directives) + row_lines(answer)

    def sources(self) -> tuple[tuple[str, int], ...]:
        """Return counts of the items by their source in metrics."""
        usage = self.usage
        return (
            *self.hit_sources,
            ("collapsed", usage.collapsed),
            ("computed", usage.computed),
            ("refused", self.refused_items),
            ("failed", usage.failed - self.refused_items),
        )

    def recorded_lookup(self, on_done: LookupCallback) -> LookupCallback:
        """Begin the span of a look-up in the cache; return `on_done` that ends it."""
        span = self.span.child("cache lookup")

        def ended(found: list[CacheHit | None]) -> None:
            describe_lookup(span, found)
            span.end()
            on_done(found)

        return ended

    def end_span(self, tracer: Tracer, *, now: float) -> None:
        """End the span of the request; a fault of ours has one although it is not sampled."""
        span = self.span
        if not span.is_recorded:
            span = tracer.failure(self.route.span_name, span, age=now - self.started)
        span.set("http.response.status_code", self.status)
        span.set("sluicegate.request_id", self.id)
        span.set("sluicegate.items", self.usage.items)
        if self.model:
            span.set("sluicegate.model", self.model)
        if self.revision:
            span.set("sluicegate.revision", self.revision)
        if self.code:
            span.fail(self.code)
        span.end()

    def event(
        self, *, wall: Callable[[], int], now: float, region: str = ""
    ) -> RequestEvent | None:
        """Return the usage event, `None` without a caller; `region` is the gateway's."""
        if self.principal is None:
            return None
        return RequestEvent(
            id=self.id,
            time=wall(),
            tenant=self.principal.tenant,
            key=self.principal.key,
            model=self.model,
            task=self.task,
            status=self.status,
            usage=self.usage,
            duration=now - self.started,
            region=region,
            revision=self.revision,
            code=self.code,
            arms=self.arms,
            client_id=self.caller_id.client_id,
            backend_region=self.backend_region,
            proxy_id=self.caller_id.proxy_id,
        )
