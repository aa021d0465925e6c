"""Makes HTTP requests of calls, decides about retries, and reads answers; does no I/O itself.

`exchange` is a generator that both clients drive: it yields a request to send or seconds to wait.
"""

import random
import time
import uuid
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, Generic, TypeVar

import httpx
import msgspec

from sluicegate.errors import ApiError, NoAnswer, SluicegateError, error_of
from sluicegate.options import Options
from sluicegate.results import Answer

T = TypeVar("T")
Outcome = httpx.Response | httpx.RequestError | None
"""What came of a request; `None` after a pause."""
Exchange = Generator[httpx.Request | float, Outcome, T]
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
# The gateway's own answer that the time ran out is better than none.
_GRACE = 1.0
_LONGEST_CONNECT = 5.0
_KEY, _STORE_AWAY = "Idempotency-Key", "dependency_unavailable"
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_PROBLEM = "application/problem+json"
_jitter = random.SystemRandom().uniform


class Call(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A request to one route, and the type of its answer."""

    method: str
    path: str
    kind: type[T]
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    accept: tuple[int, ...] = (200,)
    """The statuses that are answered by a `kind`."""


def exchange(
    call: Call[T],
    options: Options,
    build: Callable[..., httpx.Request],
    clock: Callable[[], float] = time.monotonic,
) -> Exchange[T]:
    """Send `call`, and send it again while that may help and its time allows; return the answer.

    `build` makes a request; yielded requests are answered by a response, or what prevented one.

    Raises:
        SluicegateError: of the last attempt.
    """
    deadline = clock() + options.timeout
    headers = _headers(call, options)
    is_key_own = _KEY not in httpx.Headers(options.headers)
    is_key_dropped = False
    left = options.timeout
    is_settled = True  # nothing that was sent may have been answered and billed
    failures = 0
    while True:
        # Heads that are equal to the byte are parsed once by the gateway: no clock in the first.
        headers["X-Request-Timeout"] = f"{left:.6g}"
        outcome = yield build(
            call.method,
            call.path,
            params=call.query or None,
            content=call.body,
            headers=headers,
            timeout=httpx.Timeout(left + _GRACE, connect=min(left, _LONGEST_CONNECT)),
        )
        reply = _judge(call, outcome)
        if isinstance(reply, httpx.Response):
            return _read(call, reply)
        # To wait for an attempt before, whose connection was lost, is no attempt.
        failures += not reply.is_under_way
        pause = _pause(reply, failures)
        left = deadline - clock() - pause
        is_spent = failures > options.retries or not options.retries
        if not reply.is_retryable or is_spent or left <= 0:
            raise reply
        if not isinstance(reply, ApiError):
            is_settled = is_settled and isinstance(outcome, _UNSENT)
            if is_key_dropped and not is_settled:
                raise reply  # the gateway could not tell that it is sent again
        elif is_settled and is_key_own and reply.code == _STORE_AWAY and _KEY in headers:
            # The gateway knows no keys now, and none is needed: it answers without.
            del headers[_KEY]
            is_key_dropped = True
        yield pause
        left = min(left, deadline - clock())
        if left <= 0:
            raise reply


def _headers(call: Call[Any], options: Options) -> httpx.Headers:
    headers = httpx.Headers(options.headers)
    if options.cache_control:
        headers["Cache-Control"] = options.cache_control
    if options.criticality != "default":
        headers["Sluicegate-Criticality"] = options.criticality
    if call.body is not None:
        headers["Content-Type"] = "application/json"
        if options.idempotency and options.retries:
            headers.setdefault(_KEY, uuid.uuid4().hex)
    return headers


def _judge(call: Call[Any], outcome: Outcome) -> httpx.Response | SluicegateError:
    if isinstance(outcome, httpx.Response):
        is_problem = outcome.headers.get("content-type", "").startswith(_PROBLEM)
        is_answer = outcome.status_code in call.accept and not is_problem
        return outcome if is_answer else error_of(outcome)
    failure = NoAnswer(f"the gateway did not answer: {outcome!r}")
    failure.__cause__ = outcome
    return failure


def _pause(error: SluicegateError, failures: int) -> float:
    """Return what the gateway asks for; else a pause that doubles, by chance up to half shorter."""
    if error.retry_after is not None:
        # What uses up no attempt is not asked for without a pause.
        return max(error.retry_after, _FIRST_PAUSE if error.is_under_way else 0.0)
    longest = min(_FIRST_PAUSE * 2 ** max(failures - 1, 0), _LONGEST_PAUSE)
    return _jitter(longest / 2, longest)


def _read(call: Call[T], response: httpx.Response) -> T:
    """Return what `response` says.

    Raises:
        NoAnswer: it is not what the route answers.
    """
    kind: Any = call.kind  # mypy takes no generic type for hashable
    try:
        value: T = _decoder(kind).decode(response.content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NoAnswer(
            f"{response.url.path} answered what is no answer of a gateway: {error}"
        ) from error
    if isinstance(value, Answer):
        return msgspec.structs.replace(
            value,
            request_id=response.headers.get("x-request-id", ""),
            cache_status=response.headers.get("cache-status", ""),
        )
    return value


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
