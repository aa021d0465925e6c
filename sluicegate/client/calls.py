"""Builds the HTTP requests of calls, decides about retries, and reads responses, without I/O.

Both clients drive the generator `exchange`, which yields a request to send or seconds to wait.
"""

import random
import time
import uuid
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, Generic, TypeVar

import httpx
import msgspec

from sluicegate.client.errors import ApiError, NoAnswer, SluicegateError, error_of
from sluicegate.client.options import Options
from sluicegate.client.results import Answer

T = TypeVar("T")
Outcome = httpx.Response | httpx.RequestError | None
"""The response or error of a request, or `None` after a pause."""
Exchange = Generator[httpx.Request | float, Outcome, T]
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
# Seconds to wait beyond the timeout, because the gateway's own timeout error tells more.
_GRACE = 1.0
_LONGEST_CONNECT = 5.0
_KEY, _STORE_AWAY = "Idempotency-Key", "dependency_unavailable"
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_PROBLEM = "application/problem+json"
_jitter = random.SystemRandom().uniform


class Call(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Describes a request to a route, and the type of its answer."""

    method: str
    path: str
    kind: type[T]
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    accept: tuple[int, ...] = (200,)
    """The statuses whose body is a `kind`."""


def exchange(
    call: Call[T],
    options: Options,
    build: Callable[..., httpx.Request],
    clock: Callable[[], float] = time.monotonic,
) -> Exchange[T]:
    """Send `call`, retry it while that may help and time is left, and return the answer.

    This generator yields the requests to send, and the seconds to wait. The caller answers each
    request with its response or error. `build` builds a request.

    Raises:
        SluicegateError: the last attempt failed.
    """
    deadline = clock() + options.timeout
    headers = _headers(call, options)
    is_key_own = _KEY not in httpx.Headers(options.headers)
    is_key_dropped = False
    left = options.timeout
    is_settled = True  # the gateway cannot have answered and billed an earlier attempt
    failures = 0
    while True:
        # In the first attempt, this is exactly `timeout`: the gateway caches equal request heads.
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
        # Waiting for an earlier attempt, whose connection was lost, does not count as a failure.
        failures += not reply.is_under_way
        pause = _pause(reply, failures)
        left = deadline - clock() - pause
        is_spent = failures > options.retries or not options.retries
        if not reply.is_retryable or is_spent or left <= 0:
            raise reply
        if not isinstance(reply, ApiError):
            is_settled = is_settled and isinstance(outcome, _UNSENT)
            if is_key_dropped and not is_settled:
                raise reply  # without a key, the gateway would not recognize a retry
        elif is_settled and is_key_own and reply.code == _STORE_AWAY and _KEY in headers:
            # The gateway's key store is down. Nothing was billed yet, so retry without a key.
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
    """Return the gateway's `retry_after`, or an exponential backoff with jitter."""
    if error.retry_after is not None:
        # Retries that do not count as failures always need a pause.
        return max(error.retry_after, _FIRST_PAUSE if error.is_under_way else 0.0)
    longest = min(_FIRST_PAUSE * 2 ** max(failures - 1, 0), _LONGEST_PAUSE)
    return _jitter(longest / 2, longest)


def _read(call: Call[T], response: httpx.Response) -> T:
    """Return the answer in a response.

    Raises:
        NoAnswer: the body is not valid for this route.
    """
    kind: Any = call.kind  # mypy does not treat a generic type as hashable
    try:
        value: T = _decoder(kind).decode(response.content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NoAnswer(
            f"the response of {response.url.path} is not from a gateway: {error}"
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
