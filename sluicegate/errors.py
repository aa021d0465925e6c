"""Defines the errors of the client.

SluicegateError
├── NoAnswer                      the gateway cannot be reached, or did not answer in time
└── ApiError                      it answered with a problem; the class follows from its `code`
    ├── InvalidRequest       400, 405, 413 below, ...: the request itself is wrong
    │   ├── PayloadTooLarge  413
    │   └── InvalidItem      422  `index` names the item, `item_code` says why
    ├── AuthenticationFailed 401
    ├── BudgetExhausted      402  the tenant's budget of the month is used up
    ├── PermissionDenied     403
    ├── NotFound             404  the route or the model
    ├── Conflict             409
    ├── RateLimited          429  `retry_after`
    ├── UpstreamFailed       502
    ├── Unavailable          503  `retry_after`
    ├── DeadlineExceeded     504
    └── NotCached            504  `only-if-cached`, and it is not
"""

from types import MappingProxyType

import httpx
import msgspec
from typing_extensions import override

_UNDER_WAY = "idempotency_key_in_use"
_RETRIED = frozenset({408, 429, 502, 503, 504})


class SluicegateError(Exception):
    """Base of the tree."""

    retry_after: float | None = None
    """Seconds after which the gateway asks to be called again."""

    @property
    def is_retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return True

    @property
    def is_under_way(self) -> bool:
        """Whether the call itself is being answered, to an attempt before."""
        return False


class NoAnswer(SluicegateError):
    """The gateway cannot be reached, or did not answer in time."""


class ApiError(SluicegateError):
    """The gateway answered with a problem document (RFC 9457)."""

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
        """Whether the call itself is being answered, to an attempt before."""
        return self.code == _UNDER_WAY

    @property
    @override
    def is_retryable(self) -> bool:
        """Whether the same call may succeed later: never where the gateway says that it cannot."""
        return self._should_retry and (self.status in _RETRIED or self.is_under_way)


class InvalidRequest(ApiError):
    """The request itself is wrong; sent again it fails again."""


class PayloadTooLarge(InvalidRequest):
    """The body is larger, or has more items, than allowed; see `in_parts`."""


class InvalidItem(InvalidRequest):
    """One item cannot be answered: `index` names it, `item_code` says why."""


class AuthenticationFailed(ApiError):
    """There is no key, or it is unknown, revoked or expired."""


class BudgetExhausted(ApiError):
    """The tenant's budget of the month is used up."""


class PermissionDenied(ApiError):
    """The key may not do this."""


class NotFound(ApiError):
    """There is no such route or model."""


class Conflict(ApiError):
    """The request of this `Idempotency-Key` is still under way, or a thing is in another state."""


class RateLimited(ApiError):
    """A limit is used up."""


class UpstreamFailed(ApiError):
    """A backend failed."""


class Unavailable(ApiError):
    """The gateway or its backends cannot take the request now."""


class DeadlineExceeded(ApiError):
    """The request's time ran out."""


class NotCached(ApiError):
    """Only a cached answer was asked for, and there is none."""

    @property
    @override
    def is_retryable(self) -> bool:
        """Nobody computes it meanwhile."""
        return False


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a problem document that the client reads."""

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
    """Return the error that `response` says; what is between may have answered in other words."""
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = Problem(detail=f"{response.url.host} answered with no problem document")
    client_error = InvalidRequest if response.is_client_error else ApiError
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(response.status_code, client_error)
    return kind(problem, response)


def _retry_after(headers: httpx.Headers) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        if value.isascii() and value.isdigit():
            return int(value) * unit
    return None
