"""Refuses requests that a worker without processor time would only delay, at little cost.

The answer is made once for each form of errors: a refusal costs a tenth of a miss and less. It is
neither charged nor recorded as an event, since the caller's limits are not looked up.
"""

from collections.abc import Callable
from itertools import cycle
from typing import Final, NamedTuple

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from gateway.api.error_format import ErrorFormat
from gateway.api.http import HttpReply, buffered_http, headers_by_name, respond
from gateway.api.inference_route import InferenceRoute, InferenceRoutes
from gateway.api.problem_replies import problem_reply
from gateway.api.request_headers import RequestOptions, parse_request_options
from gateway.errors import InvalidRequest, Overloaded
from gateway.http.client_id import echo_line, parse_client_id
from gateway.http.loop_iterations import LoopIterations
from gateway.runtime.store import RuntimeStore
from gateway.telemetry.metrics import GatewayMetrics
from gateway.types import RequestId

_WAITS: Final = tuple(1.0 + step / 16 for step in (0, 9, 2, 13, 5, 15, 7, 11, 3, 14, 6, 10))
"""Seconds after which callers may come back: not all of them at once."""
_PLACEHOLDER: Final = RequestId("req_of_the_request_that_is_refused")


class _Refusal(NamedTuple):
    """Holds an answer; the id of the request goes between the parts."""

    status: int
    lines: list[bytes]
    body: list[bytes]


class LoadShedder:
    """Refuses requests of all connections of a worker."""

    def __init__(
        self,
        *,
        iterations: LoopIterations,
        metrics: GatewayMetrics,
        new_id: Callable[[], RequestId],
    ) -> None:
        self.add_request = iterations.add_request
        self._iterations = iterations
        self._metrics = metrics
        self._new_id = new_id
        self._waits = cycle(_WAITS)
        self._refusals: dict[tuple[ErrorFormat, float], _Refusal] = {}

    def refuse(
        self, route: InferenceRoute, options: RequestOptions, own_lines: bytes = b""
    ) -> HttpReply | None:
        """Return the answer to a request that is refused, `None` where it is admitted.

        To be asked after `add_request` has returned true. `own_lines` are for its caller alone.
        """
        reason = self._iterations.refuses(options.criticality, options.allowed)
        if reason is None:
            return None
        refusal = self._refusal(route.errors)
        id_ = self._new_id().encode()
        self._metrics.shed(reason)
        self._metrics.request(route.template, "", 0.0, status=refusal.status, code=Overloaded.code)
        lines = id_.join(refusal.lines) + own_lines
        return HttpReply(refusal.status, lines, id_.join(refusal.body))

    def _refusal(self, errors: ErrorFormat) -> _Refusal:
        wait = next(self._waits)
        found = self._refusals.get((errors, wait))
        if found is None:
            found = self._refusals[errors, wait] = _refusal(errors, wait)
        return found


def _refusal(errors: ErrorFormat, wait: float) -> _Refusal:
    error = Overloaded(
        "The gateway has more requests than it can answer in time; try again after `Retry-After`.",
        retry_after=wait,
    )
    reply = problem_reply(error, _PLACEHOLDER, errors=errors)
    mark = _PLACEHOLDER.encode()
    return _Refusal(reply.status, reply.lines.split(mark), reply.body.split(mark))


class SheddingRequests:
    """Passes requests to `app`, but for those to inference routes that `shedder` refuses."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        shedder: LoadShedder,
        routes: InferenceRoutes,
        runtimes: RuntimeStore,
    ) -> None:
        self._app = app
        self._shedder = shedder
        self._find = routes.find
        self._runtimes = runtimes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        reply = self._refuse(scope) if scope["type"] == ScopeType.HTTP else None
        if reply is None or scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        server = buffered_http(scope)
        if server is None:
            await respond(send, reply)
        else:
            await server.send(reply.status, reply.lines, reply.body)

    def _refuse(self, scope: HTTPScope) -> HttpReply | None:
        match = self._find(scope["path"]) if scope["method"] == "POST" else None
        if match is None or not self._shedder.add_request():
            return None
        headers = headers_by_name(list(scope["headers"]))
        try:
            options = parse_request_options(headers, self._runtimes.current.document.deadline)
        except InvalidRequest:
            return None  # the application says what is wrong
        own_lines = echo_line(parse_client_id(headers))
        return self._shedder.refuse(match.route, options, own_lines)
