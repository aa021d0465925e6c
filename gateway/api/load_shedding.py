"""Refuses requests that a worker without processor time would only delay, at little cost.

The answer is made once for each form of errors: a refusal costs a tenth of a miss and less. It is
neither charged nor recorded as an event, since the caller's limits are not looked up.

Iterations of the event loop are measured. A request that arrives during an iteration waits for the
next one, and passes several iterations until its answer. As in CoDel (RFC 8289), a queue that
disappears soon is harmless. As in WeChat's DAGOR, the queueing delay decides, not the use of the
processor.

Little's law gives the number of requests to admit: the allowed length of an iteration, divided by
the seconds of the loop that a request costs. The allowed length is a part of the time that the
caller allows, so no request is refused that would be answered in time. The number of arriving
requests does not matter, so the result does not oscillate and a larger spike changes nothing.
"""

import asyncio
import math
import time
from collections.abc import Callable
from itertools import cycle
from typing import Final

import msgspec

from sluicegate.gateway.api.error_handling import problem_reply
from sluicegate.gateway.api.http import HttpReply
from sluicegate.gateway.api.incoming_request import IncomingRequest
from sluicegate.gateway.api.inference_route import InferenceRoute
from sluicegate.gateway.api.request_headers import RequestOptions, parse_request_options
from sluicegate.gateway.errors import InvalidRequest, Overloaded
from sluicegate.gateway.http.problem_details import ErrorFormat
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.gateway.types import Criticality, RequestId

WORKER_DELAY: Final = "worker_delay"
DEADLINE: Final = "deadline"
FEWEST = 4
"""An iteration always admits this many new requests. Fewer requests are not a queue."""
_SHORT: Final = 0.005
"""Seconds of an iteration. A shorter iteration with few requests ends the measurement."""
_WATCHED = 0.0125
"""Seconds of two successive iterations. Longer iterations may be the start of a queue."""
_LONG = 0.05
"""Seconds of an iteration. After a long one, a longer one counts even if it read few requests."""
_STANDING = 2
"""Successive long iterations that are a queue. A single one may be a garbage collection or a
reload."""
_HOLD = 1.0
"""Seconds for which admission stays bounded after the last iteration of a queue."""
_FADING = 0.7
"""The weight of earlier iterations in the cost of a request. A new iteration has weight 1."""
_MOST_GROWTH = 4.0
"""The factor by which the cost may grow in an iteration. Requests do not cause every pause."""
_STAGES = 4
"""Iterations between a missed request's head and its answer: cache, call, result, answer."""
_SHARE = 0.05
"""The part of a caller's time that an iteration may take. A request passes several iterations, and
backends need the rest of the time."""
_PARTS = {Criticality.SHEDDABLE: 0.25, Criticality.DEFAULT: 1.0, Criticality.CRITICAL: 2.0}
"""The part of the allowed length for each criticality. `sheddable` requests are refused first."""
_WAITS: Final = tuple(1.0 + step / 16 for step in (0, 9, 2, 13, 5, 15, 7, 11, 3, 14, 6, 10))
"""Seconds after which callers may come back: not all of them at once."""
_PLACEHOLDER: Final = b"req_of_the_request_that_is_refused"
"""Stands for the id in an answer that is made once."""


class Iteration(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An iteration that took `length` seconds of work, and read `requests` new requests."""

    length: float
    requests: int
    admitted: int
    ended: float
    """The time of its end on a monotonic clock."""


class Overload(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Summarizes the iterations so far. All times are on one monotonic clock."""

    length: float = 0.0
    """Seconds of the last iteration."""
    earlier: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Seconds of the three iterations before the last one, the latest first."""
    lengths: float = 0.0
    """The sum of the lengths of iterations, with less weight for older ones. `admitted` is the same
    sum of admitted requests."""
    admitted: float = 0.0
    cost: float = 0.0
    """Seconds of the loop that a request takes. 0 means unknown."""
    long_ones: int = 0
    """The number of successive long iterations that had new requests."""
    sheds_until: float = -math.inf
    """The time until which admission is bounded."""


CALM = Overload()


def after_iteration(before: Overload, latest: Iteration) -> Overload:
    """Return the summary after one more iteration."""
    lengths = _FADING * before.lengths + latest.length
    admitted = _FADING * before.admitted + latest.admitted
    cost = lengths / max(1.0, admitted)
    if before.cost:
        cost = min(cost, _MOST_GROWTH * before.cost)
    long_ones = before.long_ones
    if before.length + latest.length <= _WATCHED:
        long_ones = 0
    elif latest.requests >= FEWEST or (long_ones and latest.length > _LONG):
        long_ones += 1
    is_standing = long_ones >= _STANDING
    second, third, _ = before.earlier
    return Overload(
        length=latest.length,
        earlier=(before.length, second, third),
        lengths=lengths,
        admitted=admitted,
        cost=cost,
        long_ones=long_ones,
        sheds_until=latest.ended + _HOLD if is_standing else before.sheds_until,
    )


def is_beyond(
    state: Overload, criticality: Criticality, *, admitted: int, allowed: float, most: float
) -> bool:
    """Return whether an iteration that has admitted `admitted` requests refuses another one.

    The request may take `allowed` seconds. No iteration may take more than `most` seconds.
    """
    part = _PARTS[criticality]
    length = min(most, _SHARE * allowed)
    return admitted * state.cost > length * part and admitted >= FEWEST * min(1.0, part)


def is_too_late(state: Overload, allowed: float) -> bool:
    """Return whether this worker alone would delay a request beyond its `allowed` seconds.

    The request has already waited for up to one iteration. The next iterations are expected to be
    as long as the second longest of the last four, because the longest may have been a pause.
    """
    usual = sorted((state.length, *state.earlier))[-2]
    return allowed < state.length + (_STAGES - 1) * usual


class LoopIterations:
    """Measures the iterations of the event loop that it belongs to.

    `most` is the longest iteration in seconds that an overload may cause, however much time callers
    allow. With 0, nothing is measured.
    """

    def __init__(self, *, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_measured = False
        self._started = 0.0
        self._requests = 0
        self._refused = 0
        self._overload: Overload = CALM
        self._is_overloaded = False

    def add_request(self) -> bool:
        """Count a request before any work for it; return whether to ask `refuses`.

        Do not call this for a request that costs no more than its refusal.
        """
        self._requests += 1
        if not self._is_measured and self._most:
            self._is_measured = True
            self._started = self._clock()
            if self._loop is None:
                # Kept: to ask for it is a system call in Python 3.11.
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._end)
        return self._is_overloaded

    def refuses(self, criticality: Criticality, allowed: float) -> str | None:
        """Return why the last counted request is refused, or `None` if it is admitted.

        The request may take `allowed` seconds.
        """
        reason = None
        state, most = self._overload, self._most
        admitted = self._requests - self._refused - 1
        if is_too_late(state, allowed):
            reason = DEADLINE
        elif is_beyond(state, criticality, admitted=admitted, allowed=allowed, most=most):
            reason = WORKER_DELAY
        if reason is not None:
            self._refused += 1
        return reason

    def _end(self) -> None:
        """End an iteration. Work that is ready now belongs to the next iteration."""
        now, requests = self._clock(), self._requests
        latest = Iteration(
            length=now - self._started,
            requests=requests,
            admitted=requests - self._refused,
            ended=now,
        )
        self._overload = after_iteration(self._overload, latest)
        self._is_overloaded = now < self._overload.sheds_until
        self._requests = self._refused = 0
        self._started = now
        is_busy = requests >= FEWEST or latest.length > _SHORT
        if is_busy and self._loop is not None:
            # With this handle due the loop polls without waiting: the time is all work.
            self._loop.call_soon(self._end)
        else:
            self._is_measured = False


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
        self._refusals: dict[tuple[ErrorFormat, float], HttpReply] = {}

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
        lines = refusal.lines.replace(_PLACEHOLDER, id_) + own_lines
        return HttpReply(refusal.status, lines, refusal.body.replace(_PLACEHOLDER, id_))

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

    def _refusal(self, errors: ErrorFormat) -> HttpReply:
        wait = next(self._waits)
        found = self._refusals.get((errors, wait))
        if found is None:
            error = Overloaded(
                "The gateway has more requests than it can answer in time; try again after"
                " `Retry-After`.",
                retry_after=wait,
            )
            found = problem_reply(error, RequestId(_PLACEHOLDER.decode()), errors=errors)
            self._refusals[errors, wait] = found
        return found
