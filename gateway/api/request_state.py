"""Holds the state of one request while it is answered, for its headers and usage event."""

import secrets
from collections.abc import Callable

import msgspec

from gateway.api.answers import is_refusal
from gateway.api.http import HttpReply
from gateway.api.inference_route import JSON, InferenceRoute, Rendered, RequestBody
from gateway.api.request_headers import NO_OPTIONS
from gateway.cache.entry import CachedResult
from gateway.cache.key import CacheKey
from gateway.errors import GatewayError, InternalError, InvalidItem
from gateway.events.hit_run import HitRun
from gateway.http.byte_budget import HeldBytes
from gateway.http.client_id import echo_line
from gateway.inference.outcomes import PASSING_REFUSALS
from gateway.inference.prepared_request import PreparedRequest, RequestPlan
from gateway.rate_limit.base import Charge, RepeatedCharge
from gateway.runtime.runtime import Runtime
from gateway.telemetry.spans import NO_SPAN
from gateway.types import (
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
    Usage,
)

_NOTHING = Usage(items=0, hit=0, collapsed=0, computed=0, failed=0, rows=0, tokens=0)


class HitReplay(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request of one item that was a memory hit, for equal requests to replay.

    Valid only while `plan` is current and the cache returns this very `entry`, and for callers
    without directives until `valid_until`, a time of the wall clock.
    """

    plan: RequestPlan
    key: CacheKey
    entry: CachedResult
    valid_until: float
    model: str
    revision: str
    usage: Usage
    body: bytes
    content: bytes
    """The header lines that say what the body is."""
    tail: bytes
    """The constant end of the answer: those lines, `content-length` and the body."""
    run: HitRun
    charge: RepeatedCharge


class StoredAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what answers with a stored result have in common, and counts their run.

    They are those to one caller of one model under one `runtime` from one tier. The result stands
    between `start` and `end` of the body; the age follows `lines`.
    """

    runtime: Runtime
    revision: str
    tier: str
    run: HitRun
    usage: Usage
    start: bytes
    end: bytes
    lines: bytes
    content: bytes


class ParsedBody(msgspec.Struct, kw_only=True):
    """A parsed request body. Shared by requests of one caller with equal bodies.

    `prepared`, `replay` and `stored` are set later, and cleared or replaced when they are no longer
    valid.
    """

    route: InferenceRoute
    body: RequestBody
    request: InferenceRequest
    charges: tuple[Charge, ...]
    length: int = 0
    """The bytes of the body."""
    held_bytes: int = 0
    """Bytes of the worker's memory that the request holds; 0: it is not large."""
    failed: Usage
    """The usage to report where the request fails as a whole."""
    prepared: PreparedRequest | None = None
    replay: HitReplay | None = None
    stored: StoredAnswers | None = None
    """What the last answer was made with that another tier than memory had."""


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
    """A request's identity and progress. Filled in as it goes; read for the event and headers.

    Defaults are class attributes, as a memory hit never writes most of them.
    """

    principal: Principal | None = None
    attempt: RequestId | None = None
    """The id that it gets when it or an item fails, where `id` is that of all attempts at it."""
    options = NO_OPTIONS
    expects = False
    """The caller waits for `100 Continue` before it sends the body."""
    wants_timing = False
    coding = ""
    """How a large answer is to be compressed; empty: not at all."""
    reply: HttpReply | None = None
    """An answer that is compressed before it is sent."""
    own_lines = b""
    """Header lines for this caller: that a page may read the answer, and its own id."""
    client_id = ""
    """What the caller names the request by."""
    phase_weight = 1
    """How many requests its phases are counted for; 0: those of another one stand for them."""
    is_body_due = True
    unread = b""
    """A body that is read once it is its turn."""
    held_body: HeldBytes | None = None
    """The room that a large body holds."""
    span = NO_SPAN
    """Of the whole request."""
    parsed: ParsedBody | None = None
    limit_lines = b""
    prepared: PreparedRequest | None = None
    """Set once the request is within its limits and its key's rights."""
    outcomes: list[ItemOutcome | None] | None = None
    """The outcomes of items found in the cache, once it was read."""
    passing: frozenset[int] = frozenset()
    """The statuses of items that another try may answer, in an answer with others."""
    model = ""
    revision = ""
    status = 200
    """As the route's dialect says it."""
    is_fault = False
    """It ended with an error that is none of the caller's, whatever its status."""
    is_passing = False
    """It ended with an error that another try may mend, whatever its status."""
    code = ""
    usage = _NOTHING
    refused_items = 0
    """Of those that failed, how many did so by no fault."""
    arms: tuple[RevisionUsage, ...] = ()
    hit_sources: tuple[tuple[str, int], ...] = ()
    """Counts of hits by what metrics call their source."""
    lines = b""
    answer_length = 0
    """The bytes of the answer's body."""
    answer: Answer | None = None
    """An answer that a thread will encode."""
    rendered: Rendered | None = None
    """The answer, where it was encoded in a thread."""
    held_bytes = 0
    """Bytes of the budget that the answer holds under the caller's key."""
    content = JSON
    """The header lines that say what the body of the answer is."""
    parameters: tuple[str, ...] = ()
    """Those of the path."""
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
        """When it and its present phase began, on a finer clock than the loop's."""

    def release_body(self) -> None:
        """Release the room that the body holds."""
        if self.held_body is not None:
            self.held_body.release()

    def on_head_read(self) -> None:
        """Note that the head was read: set the deadline, and stop expecting `100 Continue`."""
        self.is_body_due = False
        self.deadline = self.started + self.options.allowed

    def record_under(self, id_: RequestId) -> None:
        """Have its answer recorded under `id_`, under which the ledger counts one answer."""
        self.attempt, self.id = self.id, id_

    def record_alone(self) -> None:
        """Have this attempt recorded under an id of its own: another one may end otherwise."""
        if self.attempt is not None:
            self.id = self.attempt

    def caller_and_body(self) -> tuple[Principal, ParsedBody]:
        """Return the caller and the body, both of which must have been read."""
        if self.principal is None or self.parsed is None:
            raise RuntimeError("the request has not been read yet")
        return self.principal, self.parsed

    def caller(self) -> Caller:
        """Return what the backends' side needs to know of the request, which was read."""
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
    def holder(self) -> KeyId | None:
        """The key that holds bytes of the budget for the answer, if any."""
        return self.principal.key if self.principal is not None and self.held_bytes else None

    def forget_body(self) -> None:
        """Drop the body and the results, once the answer is encoded."""
        self.parsed = self.prepared = self.outcomes = self.rendered = None

    def name(self, client_id: str) -> None:
        """Note what the caller names the request by, which its answer repeats."""
        self.client_id = client_id
        self.own_lines = echo_line(client_id)

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

    def fail_some(self, refused: int, passing: frozenset[int]) -> None:
        """Note that some items failed: how many by no fault, and what another try may mend."""
        self.refused_items = refused
        if passing:
            self.passing = passing
            self.record_alone()

    def sources(self) -> tuple[tuple[str, int], ...]:
        """Return counts of the items by what metrics call their source."""
        usage = self.usage
        return (
            *self.hit_sources,
            ("collapsed", usage.collapsed),
            ("computed", usage.computed),
            ("refused", self.refused_items),
            ("failed", usage.failed - self.refused_items),
        )

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
            client_id=self.client_id,
        )
