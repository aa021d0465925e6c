"""Defines every error that the gateway raises on purpose, with its status and stable `code`.

GatewayError
├── ClientError                          the caller can fix it
│   ├── InvalidRequest             400   not JSON, an unknown field, a wrong type
│   ├── TaskNotSupported           400   the model answers other tasks
│   ├── AuthenticationFailed       401   no key, or one that is unknown, revoked or expired
│   ├── BudgetExhausted            402   the tenant's budget of the month is used up
│   ├── PermissionDenied           403   the key may not do this
│   ├── NotFound                   404   no such route or resource
│   ├── ModelNotFound              404   no model of that name is served
│   ├── MethodNotAllowed           405   the route answers other methods
│   ├── RequestTimeout             408   the body did not arrive in time
│   ├── Conflict                   409   the resource exists, or is in another state
│   ├── IdempotencyKeyInUse        409   retryable; the request of the key is not done yet
│   ├── PreconditionFailed         412   `If-Match` names another version
│   ├── PayloadTooLarge            413   the body is too large, or has too many items
│   ├── UnsupportedContentCoding   415   the body is compressed in another way than is read
│   ├── InvalidItem                422   one item of the input, named by its index
│   ├── ExpansionTooLarge          422   what it expands to, or its answer, would be too large
│   ├── IdempotencyKeyReused       422   the key came with another request before
│   ├── RateLimited                429   retryable, after `retry_after`
│   └── HeaderFieldsTooLarge       431   the head is too long, or has too many fields
├── TransferCodingNotSupported     501   a transfer coding other than `chunked`
├── VersionNotSupported            505   another version of HTTP than 1.0 and 1.1
├── NotCached                      504   `only-if-cached`, and there is no cached answer
├── UpstreamError                        the backends failed
│   ├── UpstreamFailed             502   a backend answered with an error of its own
│   ├── Overloaded                 503   retryable, after `retry_after`
│   ├── UpstreamUnavailable        503   retryable, after `retry_after`
│   └── DeadlineExceeded           504   the request's deadline passed
├── EventLogUnavailable            503   retryable; an answer that cannot be billed is not sent
├── DependencyUnavailable          503   retryable; the SQL store or Redis is unreachable
├── ConfigurationError             422   a document is refused: file, line, field
├── ModelsBroken                   422   a reload found models that cannot be served
├── PlanRefused                    422   revisions cannot be served as an operator asked
└── InternalError                  500   a fault of the gateway
"""

from typing import ClassVar, Final, Self

from typing_extensions import override

MAX_RETRY_AFTER: Final = 120.0
"""Seconds that `Retry-After` asks for at most: clients give up on more."""


class GatewayError(Exception):
    """Base of the tree; `detail` is a sentence that says what to do, and holds no secret."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"
    retryable: ClassVar[bool] = False

    @override
    def __init_subclass__(cls) -> None:
        """Give a class that declares a code and no title the code in words as its title."""
        if "code" in cls.__dict__ and "title" not in cls.__dict__:
            cls.title = cls.code.replace("_", " ").capitalize()

    def __init__(self, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after


class InternalError(GatewayError):
    """A fault of the gateway; its cause is in the log under the request's id."""


class ClientError(GatewayError):
    """The caller can fix it."""

    status = 400
    code = "invalid_request"


class InvalidRequest(ClientError):
    """The request cannot be read: not JSON, an unknown field, a wrong type."""


class AuthenticationFailed(ClientError):
    """No key, or one that is unknown, revoked or expired."""

    status = 401
    code = "authentication_failed"


class BudgetExhausted(ClientError):
    """The tenant has spent its budget of the month; sent again the request fails again."""

    status = 402
    code = "budget_exhausted"


class PermissionDenied(ClientError):
    """The key is known and may not do this."""

    status = 403
    code = "permission_denied"


class NotFound(ClientError):
    """No such route or resource."""

    status = 404
    code = "not_found"


class MethodNotAllowed(ClientError):
    """The route exists and answers other methods."""

    status = 405
    code = "method_not_allowed"


class ModelNotFound(ClientError):
    """No model of that name is served."""

    status = 404
    code = "model_not_found"


class TaskNotSupported(ClientError):
    """The model is served and answers other tasks."""

    status = 400
    code = "task_not_supported"
    title = "Task not supported by the model"


class RequestTimeout(ClientError):
    """The request's body did not arrive in time."""

    status = 408
    code = "request_timeout"


class Conflict(ClientError):
    """The resource exists already, or is in another state."""

    status = 409
    code = "conflict"


class IdempotencyKeyInUse(ClientError):
    """The request with this `Idempotency-Key` is not done yet."""

    status = 409
    code = "idempotency_key_in_use"
    retryable = True


class IdempotencyKeyReused(ClientError):
    """The `Idempotency-Key` came with another body, route or method before."""

    status = 422
    code = "idempotency_key_reused"


class PreconditionFailed(ClientError):
    """`If-Match` names another version than the current one."""

    status = 412
    code = "precondition_failed"


class PayloadTooLarge(ClientError):
    """The body is larger, or has more items, than allowed."""

    status = 413
    code = "payload_too_large"


class UnsupportedContentCoding(ClientError):
    """The body is compressed in a way that is not understood."""

    status = 415
    code = "unsupported_content_encoding"


class InvalidItem(ClientError):
    """One item of the input cannot be answered; `index` names it, `item_code` says why."""

    status = 422
    code = "invalid_item"

    def __init__(self, detail: str, *, index: int, item_code: str) -> None:
        super().__init__(detail)
        self.index = index
        self.item_code = item_code


class ExpansionTooLarge(ClientError):
    """The inputs expand to more than is allowed, or could have a larger answer than is allowed."""

    status = 422
    code = "expansion_too_large"
    title = "Request expands too far"


class RateLimited(ClientError):
    """A limit is used up; nothing was consumed."""

    status = 429
    code = "rate_limited"
    title = "Rate limit exceeded"
    retryable = True


class HeaderFieldsTooLarge(ClientError):
    """The head of the request is longer, or has more fields, than is read."""

    status = 431
    code = "header_fields_too_large"
    title = "Request header fields too large"


class TransferCodingNotSupported(GatewayError):
    """The request is in a transfer coding that is not supported."""

    status = 501
    code = "not_implemented"


class VersionNotSupported(GatewayError):
    """The request is in another version of HTTP than 1.0 and 1.1."""

    status = 505
    code = "http_version_not_supported"
    title = "HTTP version not supported"


class NotCached(GatewayError):
    """The caller asked for cached answers only, and there is none."""

    status = 504
    code = "not_cached"
    title = "Not in the cache"


class UpstreamError(GatewayError):
    """The backends failed."""

    status = 502
    code = "upstream_failed"
    title = "Backend failure"


class UpstreamFailed(UpstreamError):
    """A backend answered with an error that another would repeat."""


class Overloaded(UpstreamError):
    """Every backend refused more work for now."""

    status = 503
    code = "overloaded"
    retryable = True


class UpstreamUnavailable(UpstreamError):
    """No backend of the model could be reached."""

    status = 503
    code = "upstream_unavailable"
    title = "No backend available"
    retryable = True


class DeadlineExceeded(UpstreamError):
    """The request's deadline passed."""

    status = 504
    code = "deadline_exceeded"

    @classmethod
    def during(cls, phase: str) -> Self:
        """Return the error of a request whose deadline passed during `phase`."""
        return cls(
            f"The request's deadline passed during {phase}; send fewer items, or ask for more time"
            " with `X-Request-Timeout`."
        )


class EventLogUnavailable(GatewayError):
    """The event log cannot be written, and an answer that cannot be billed is not given."""

    status = 503
    code = "event_log_unavailable"
    retryable = True


class DependencyUnavailable(GatewayError):
    """The SQL store or Redis is needed for this and cannot be reached."""

    status = 503
    code = "dependency_unavailable"
    retryable = True


class ConfigurationError(GatewayError):
    """A configuration document is refused; `file`, `line` and `field` say where."""

    status = 422
    code = "invalid_configuration"

    def __init__(
        self, detail: str, *, file: str | None = None, line: int | None = None, field: str = ""
    ) -> None:
        super().__init__(detail)
        self.file = file
        self.line = line
        self.field = field


class ModelsBroken(GatewayError):
    """Models were read again, and some cannot be served as their folders say."""

    status = 422
    code = "models_broken"
    title = "Models are broken"


class PlanRefused(GatewayError):
    """Revisions of a model cannot be served as an operator asked; nothing has changed."""

    status = 422
    code = "plan_refused"
