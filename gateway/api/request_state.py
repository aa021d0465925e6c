"""One request on its way through a door: what is known of it so far, for headers and its event."""

import secrets
from collections.abc import Callable

import msgspec

from backends.protocol import Task
from gateway.api.request_headers import NO_OPTIONS
from gateway.api.schemas import Body
from gateway.cache.entry import CachedResult
from gateway.errors import GatewayError
from gateway.events.hit_run import ID_DIGITS, HitRun
from gateway.inference.prepared_request import PreparedRequest
from gateway.rate_limit.base import Charge, Decision
from gateway.runtime.runtime import Runtime
from gateway.types import (
    InferenceRequest,
    ItemOutcome,
    Principal,
    RequestEvent,
    RequestId,
    Usage,
)

_NOTHING = Usage(items=0, hit=0, collapsed=0, computed=0, failed=0, rows=0, tokens=0)


class HitReplay(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request of one item that was a memory hit: the next hit repeats it.

    `entry` is what was found; where another is found, nothing here holds.
    """

    entry: CachedResult
    model: str
    revision: str
    usage: Usage
    body: bytes
    tail: bytes
    """What of an answer is always the same at its end: the length, and the body."""
    run: HitRun


class ParsedBody(msgspec.Struct, kw_only=True):
    """What the body of a request says. Shared by requests of one caller that say the same.

    `job` and `repeat` come later, and are left out again when they hold no more.
    """

    body: Body
    request: InferenceRequest
    charges: tuple[Charge, ...]
    failed: Usage
    """The usage where the request fails as a whole."""
    job: PreparedRequest | None = None
    repeat: HitReplay | None = None


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

    What is not known yet is as the class says: most of a memory hit's is never written.
    """

    principal: Principal | None = None
    asked = NO_OPTIONS
    expects = False
    """The caller waits for `100 Continue` before it sends the body."""
    wants_timing = False
    is_body_due = True
    body_bytes = 0
    """What a large body takes of the room for all of them."""
    traceparent = ""
    reading: ParsedBody | None = None
    decision: Decision | None = None
    job: PreparedRequest | None = None
    """What the request needs, once it is within its limits and its key's rights."""
    outcomes: list[ItemOutcome | None] | None = None
    """What the cache had for its items, once it was asked."""
    model = ""
    revision = ""
    status = 200
    code = ""
    usage = _NOTHING
    lines = b""

    def __init__(
        self, request_id: RequestId, *, task: Task, runtime: Runtime, started: float
    ) -> None:
        self.id = request_id
        self.task = task
        self.runtime = runtime
        self.started = self.admitted = self.deadline = started

    def body_is_read(self) -> None:
        """Note that the head was understood: its deadline holds, and the body is asked for."""
        self.is_body_due = False
        self.deadline = self.started + self.asked.allowed

    def known(self) -> tuple[Principal, ParsedBody]:
        """Return who asks and for what, once both are known."""
        if self.principal is None or self.reading is None:
            raise RuntimeError("the request has not been read yet")
        return self.principal, self.reading

    def fail(self, error: GatewayError, usage: Usage) -> None:
        """Note that the request ends with `error`."""
        self.status = error.status
        self.code = error.code
        self.usage = usage

    def event(
        self, *, wall: Callable[[], int], now: float, region: str = ""
    ) -> RequestEvent | None:
        """Return the event of an exchange with a known caller, answered in a gateway `region`."""
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
        )
