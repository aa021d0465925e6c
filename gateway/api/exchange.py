"""One request on its way through a door: what is known of it so far, for headers and its event."""

import itertools
import secrets
from collections.abc import Callable

from backends.protocol import Task
from gateway.api.request_headers import NOTHING_ASKED
from gateway.api.schemas import Body
from gateway.errors import GatewayError
from gateway.inference import Job
from gateway.rate_limit.base import Decision
from gateway.runtime.runtime import Runtime
from gateway.types import InferenceRequest, Principal, RequestEvent, RequestId, Usage

_NOTHING = Usage(items=0, hit=0, collapsed=0, computed=0, failed=0, rows=0, tokens=0)


class RequestIds:
    """Makes ids that no other process makes: a random start for each process, then a count."""

    def __init__(self) -> None:
        self._prefix = "req_" + secrets.token_hex(8)
        self._counter = itertools.count()

    def new(self) -> RequestId:
        """Return an id never given before."""
        return RequestId(f"{self._prefix}{next(self._counter):010x}")


class Exchange:
    """A request's identity and progress. Filled in as it goes; read for the event and headers."""

    __slots__ = (
        "admitted",
        "asked",
        "body",
        "code",
        "deadline",
        "decision",
        "expects",
        "id",
        "is_body_due",
        "job",
        "lines",
        "model",
        "principal",
        "request",
        "revision",
        "runtime",
        "started",
        "status",
        "task",
        "traceparent",
        "usage",
        "wants_timing",
    )

    def __init__(
        self, request_id: RequestId, *, task: Task, runtime: Runtime, started: float
    ) -> None:
        self.id = request_id
        self.task = task
        self.runtime = runtime
        self.started = started
        self.admitted = started
        self.deadline = started
        self.expects = False
        self.wants_timing = False
        self.is_body_due = True
        self.asked = NOTHING_ASKED
        self.body: Body | None = None
        self.request: InferenceRequest | None = None
        self.job: Job | None = None
        self.lines = b""
        self.principal: Principal | None = None
        self.decision: Decision | None = None
        self.model = ""
        self.revision = ""
        self.traceparent = ""
        self.status = 200
        self.code = ""
        self.usage = _NOTHING

    def body_is_read(self) -> None:
        """Note that the head was understood: its deadline holds, and the body is asked for."""
        self.is_body_due = False
        self.deadline = self.started + self.asked.allowed

    def known(self) -> tuple[Principal, InferenceRequest]:
        """Return who asks and for what, once both are known."""
        if self.principal is None or self.request is None:
            raise RuntimeError("the request has not been read yet")
        return self.principal, self.request

    def fail(self, error: GatewayError, usage: Usage) -> None:
        """Note that the request ends with `error`."""
        self.status = error.status
        self.code = error.code
        self.usage = usage

    def event(self, *, wall: Callable[[], int], now: float) -> RequestEvent | None:
        """Return the event of an exchange with a known caller."""
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
            revision=self.revision,
            code=self.code,
        )
