"""Refuses requests that a worker without processor time would only delay, at little cost.

The answer is made once for each form of errors: a refusal costs a tenth of a miss and less. It is
neither charged nor recorded as an event, since the caller's limits are not looked up.
"""

from collections.abc import Callable
from itertools import cycle
from typing import Final, NamedTuple

from gateway.api.error_format import ErrorFormat
from gateway.api.http import HttpReply
from gateway.api.incoming_request import IncomingRequest
from gateway.api.inference_route import InferenceRoute
from gateway.api.problem_replies import problem_reply
from gateway.api.request_headers import RequestOptions, parse_request_options
from gateway.errors import InvalidRequest, Overloaded
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
        runtimes: RuntimeStore,
        new_id: Callable[[], RequestId],
    ) -> None:
        self.add_request = iterations.add_request
        self._iterations = iterations
        self._metrics = metrics
        self._runtimes = runtimes
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

    def answer_early(self, request: IncomingRequest, route: InferenceRoute) -> HttpReply | None:
        """Count a request. Return the answer if it is refused."""
        if request.method != "POST" or not self.add_request():
            return None
        try:
            options = parse_request_options(
                request.fields, self._runtimes.current.document.deadline
            )
        except InvalidRequest:
            return None  # who answers the request says what is wrong
        return self.refuse(route, options, request.id_line)

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
