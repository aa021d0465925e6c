"""Defines the errors of the client.

SluicegateError
├── NoAnswer                      the gateway cannot be reached, or did not answer in time
└── ApiError                      the gateway answered with a problem document
    ├── InvalidRequest       4xx  the request is invalid
    │   ├── PayloadTooLarge  413
    │   └── InvalidItem      422  an item is invalid: see `index` and `item_code`
    ├── AuthenticationFailed 401
    ├── BudgetExhausted      402  the tenant's monthly budget is used up
    ├── PermissionDenied     403
    ├── NotFound             404  the route or the model
    ├── Conflict             409
    ├── RateLimited          429  `retry_after`
    ├── UpstreamFailed       502
    ├── Unavailable          503  `retry_after`
    ├── DeadlineExceeded     504
    └── NotCached            504  the result is not cached, but the request is `only-if-cached`
"""

from types import MappingProxyType

import httpx
import msgspec
from typing_extensions import override

_UNDER_WAY = "idempotency_key_in_use"
_RETRIED = frozenset({408, 429, 502, 503, 504})


class SluicegateError(Exception):
    """Is the base class of all errors of the client."""

    retry_after: float | None = None
    """Seconds to wait before a retry, as the gateway requests."""

    @property
    def is_retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return True

    @property
    def is_under_way(self) -> bool:
        """Whether the gateway is still answering an earlier attempt of the same call."""
        return False


class NoAnswer(SluicegateError):
    """Reports that the gateway cannot be reached, or did not answer in time."""


class ApiError(SluicegateError):
    """Reports that the gateway answered with a problem document (RFC 9457)."""

    def __init__(self, problem: "Problem", response: httpx.Response) -> None:
        super().__init__(f"{problem.detail} ({problem.code}, {response.status_code})")
        self.status = response.status_code
        self.code = problem.code
        self.detail = problem.detail
        self.request_id = problem.request_id or response.headers.get("x-request-id", "")
        self.index = problem.index
        self.item_code = problem.item_code
        self.retry_after = _retry_after(response.headers)
        self._should_retry = response.headers.get("x-should-retry") != "false"

    @property
    @override
    def is_under_way(self) -> bool:
        """Whether the gateway is still answering an earlier attempt of the same call."""
        return self.code == _UNDER_WAY

    @property
    @override
    def is_retryable(self) -> bool:
        """Whether the same call may succeed later, according to the gateway's response."""
        return self._should_retry and (self.status in _RETRIED or self.is_under_way)


class InvalidRequest(ApiError):
    """Reports an invalid request; a retry would fail again."""


class PayloadTooLarge(InvalidRequest):
    """Reports a body that is too large or has too many items; see `in_parts`."""


class InvalidItem(InvalidRequest):
    """Reports an item that cannot be answered; see `index` and `item_code`."""


class AuthenticationFailed(ApiError):
    """Reports an API key that is missing, unknown, revoked or expired."""

    def __init__(self, problem: "Problem", response: httpx.Response) -> None:
        super().__init__(problem, response)
        if "Authorization" not in response.request.headers:
            self.args = (f"{self}; set `SLUICEGATE_KEY` or pass `key`",)


class BudgetExhausted(ApiError):
    """Reports that the tenant's monthly budget is used up."""


class PermissionDenied(ApiError):
    """Reports that the key does not permit the request."""


class NotFound(ApiError):
    """Reports that the route or model does not exist."""


class Conflict(ApiError):
    """Reports a conflict with the present state, such as an `Idempotency-Key` that is in use."""


class RateLimited(ApiError):
    """Reports that a rate limit or quota is used up."""


class UpstreamFailed(ApiError):
    """Reports that a backend failed."""


class Unavailable(ApiError):
    """Reports that the gateway or its backends cannot take the request at present."""


class DeadlineExceeded(ApiError):
    """Reports that the request missed its deadline."""


class NotCached(ApiError):
    """Reports that the request is `only-if-cached` and the result is not cached."""

    @property
    @override
    def is_retryable(self) -> bool:
        """Always false, because nothing computes the result meanwhile."""
        return False


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Has the fields of a problem document that the client reads."""

    code: str = "unknown"
    detail: str = ""
    request_id: str = ""
    index: int | None = None
    item_code: str = ""


_BY_CODE = MappingProxyType({"invalid_item": InvalidItem, "not_cached": NotCached})
_BY_STATUS: MappingProxyType[int, type[ApiError]] = MappingProxyType(
    {
        401: AuthenticationFailed,
        402: BudgetExhausted,
        403: PermissionDenied,
        404: NotFound,
        409: Conflict,
        413: PayloadTooLarge,
        429: RateLimited,
        502: UpstreamFailed,
        503: Unavailable,
        504: DeadlineExceeded,
    }
)


def error_of(response: httpx.Response) -> ApiError:
    """Return the error that a response reports.

    The response may come from a proxy and not from the gateway.
    """
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = Problem(detail=f"{response.url.host} answered without a problem document")
    client_error = InvalidRequest if response.is_client_error else ApiError
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(response.status_code, client_error)
    return kind(problem, response)


def _retry_after(headers: httpx.Headers) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        if value.isascii() and value.isdigit():
            return int(value) * unit
    return None
