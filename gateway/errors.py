"""Defines all errors that the gateway raises on purpose. Each has a status and a stable `code`.

GatewayError
├── ClientError                          the caller can fix the request
│   ├── InvalidRequest             400   not JSON, an unknown field, a wrong type
│   ├── TaskNotSupported           400   the model does not have the task
│   ├── AuthenticationFailed       401   the key is missing, unknown, revoked or expired
│   ├── BudgetExhausted            402   the tenant's budget for this month is used up
│   ├── PermissionDenied           403   the key may not do this
│   ├── NotFound                   404   the route or resource does not exist
│   ├── ModelNotFound              404   no model of this name is served
│   ├── MethodNotAllowed           405   the route does not support the method
│   ├── RequestTimeout             408   the body did not arrive in time
│   ├── Conflict                   409   the resource exists, or its state forbids the change
│   ├── IdempotencyKeyInUse        409   retryable; the first request with the key still runs
│   ├── PreconditionFailed         412   `If-Match` does not name the current version
│   ├── PayloadTooLarge            413   the body is too large, or has too many items
│   ├── UnsupportedContentCoding   415   the compression of the body is not supported
│   ├── InvalidItem                422   an item is invalid; `index` identifies it
│   ├── ExpansionTooLarge          422   the expanded inputs or the response would be too large
│   ├── IdempotencyKeyReused       422   the key was used for a different request
│   ├── RateLimited                429   retryable, after `retry_after`
│   └── HeaderFieldsTooLarge       431   the head is too long, or has too many fields
├── TransferCodingNotSupported     501   a transfer coding other than `chunked`
├── VersionNotSupported            505   an HTTP version other than 1.0 and 1.1
├── NotCached                      504   `only-if-cached`, but a result is not cached
├── UpstreamError                        the backends failed
│   ├── UpstreamFailed             502   a backend returned an error
│   ├── Overloaded                 503   retryable, after `retry_after`
│   ├── UpstreamUnavailable        503   retryable, after `retry_after`
│   └── DeadlineExceeded           504   the request's deadline passed
├── EventLogUnavailable            503   retryable; a response that cannot be billed is not sent
├── DependencyUnavailable          503   retryable; the SQL store or Redis is unreachable
├── ConfigurationError             422   a configuration document is invalid
├── ModelsBroken                   422   a reload found models that cannot be served
├── PlanRefused                    422   an operator's plan for a model cannot be carried out
└── InternalError                  500   a fault of the gateway
"""

from typing import ClassVar, Final, Self

from typing_extensions import override

MAX_RETRY_AFTER: Final = 120.0
"""The largest `Retry-After` in seconds. Clients would not wait longer."""


class GatewayError(Exception):
    """Base class of all errors.

    `detail` is a sentence that says what to do. It contains no secret.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"
    retryable: ClassVar[bool] = False

    @override
    def __init_subclass__(cls) -> None:
        """Derive the title of an error class from its code, unless the class has its own title."""
        if "code" in cls.__dict__ and "title" not in cls.__dict__:
            cls.title = cls.code.replace("_", " ").capitalize()

    def __init__(self, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after


class InternalError(GatewayError):
    """The gateway has a fault. The log shows the cause, with the request's id."""


class ClientError(GatewayError):
    """The caller can fix the request."""

    status = 400
    code = "invalid_request"


class InvalidRequest(ClientError):
    """The request is not JSON, or has an unknown field or a wrong type."""


class AuthenticationFailed(ClientError):
    """The API key is missing, unknown, revoked or expired."""

    status = 401
    code = "authentication_failed"


class BudgetExhausted(ClientError):
    """The tenant has spent its budget for this month. A retry would fail, too."""

    status = 402
    code = "budget_exhausted"


class PermissionDenied(ClientError):
    """The API key does not permit this request."""

    status = 403
    code = "permission_denied"


class NotFound(ClientError):
    """The route or resource does not exist."""

    status = 404
    code = "not_found"


class MethodNotAllowed(ClientError):
    """The route exists, but does not support this method."""

    status = 405
    code = "method_not_allowed"


class ModelNotFound(ClientError):
    """No model of this name is served."""

    status = 404
    code = "model_not_found"


class TaskNotSupported(ClientError):
    """The model is served, but does not have this task."""

    status = 400
    code = "task_not_supported"
    title = "Task not supported by the model"


class RequestTimeout(ClientError):
    """The request's body did not arrive in time."""

    status = 408
    code = "request_timeout"


class Conflict(ClientError):
    """The resource already exists, or its state does not allow the change."""

    status = 409
    code = "conflict"


class IdempotencyKeyInUse(ClientError):
    """The first request with this `Idempotency-Key` is still running."""

    status = 409
    code = "idempotency_key_in_use"
    retryable = True


class IdempotencyKeyReused(ClientError):
    """The `Idempotency-Key` was used before with another body, route or method."""

    status = 422
    code = "idempotency_key_reused"


class PreconditionFailed(ClientError):
    """`If-Match` does not name the current version."""

    status = 412
    code = "precondition_failed"


class PayloadTooLarge(ClientError):
    """The body is too large, or has too many items."""

    status = 413
    code = "payload_too_large"


class UnsupportedContentCoding(ClientError):
    """The compression of the body is not supported."""

    status = 415
    code = "unsupported_content_encoding"


class InvalidItem(ClientError):
    """An item of the input is invalid. `index` says which item, and `item_code` says why."""

    status = 422
    code = "invalid_item"

    def __init__(self, detail: str, *, index: int, item_code: str) -> None:
        super().__init__(detail)
        self.index = index
        self.item_code = item_code


class ExpansionTooLarge(ClientError):
    """The expanded inputs, or the possible response, exceed a size limit."""

    status = 422
    code = "expansion_too_large"
    title = "Request expands too far"


class RateLimited(ClientError):
    """A limit is used up. The refused request does not count towards the limit."""

    status = 429
    code = "rate_limited"
    title = "Rate limit exceeded"
    retryable = True


class HeaderFieldsTooLarge(ClientError):
    """The head of the request is too long, or has too many fields."""

    status = 431
    code = "header_fields_too_large"
    title = "Request header fields too large"


class TransferCodingNotSupported(GatewayError):
    """The request uses a transfer coding that is not supported."""

    status = 501
    code = "not_implemented"


class VersionNotSupported(GatewayError):
    """The request uses an HTTP version other than 1.0 and 1.1."""

    status = 505
    code = "http_version_not_supported"
    title = "HTTP version not supported"


class NotCached(GatewayError):
    """The caller accepts only cached results, but a result is not cached."""

    status = 504
    code = "not_cached"
    title = "Not in the cache"


class UpstreamError(GatewayError):
    """The backends failed."""

    status = 502
    code = "upstream_failed"
    title = "Backend failure"


class UpstreamFailed(UpstreamError):
    """A backend returned an error. Other backends would return the same error."""


class Overloaded(UpstreamError):
    """All backends are overloaded and refused the request."""

    status = 503
    code = "overloaded"
    retryable = True


class UpstreamUnavailable(UpstreamError):
    """No backend of the model can be reached."""

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
            f"The request's deadline passed during {phase}; send fewer items, or allow more time"
            " with `X-Request-Timeout`."
        )


class EventLogUnavailable(GatewayError):
    """The event log cannot be written, so the response cannot be billed and is not sent."""

    status = 503
    code = "event_log_unavailable"
    retryable = True


class DependencyUnavailable(GatewayError):
    """The ledger's database or Redis cannot be reached."""

    status = 503
    code = "dependency_unavailable"
    retryable = True


class ConfigurationError(GatewayError):
    """A configuration document is invalid. `file`, `line` and `field` say where the problem is."""

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
    """Models were reloaded, but some cannot be served as their folders define."""

    status = 422
    code = "models_broken"
    title = "Models are broken"


class PlanRefused(GatewayError):
    """An operator's change of how a model is served was refused. Nothing has changed."""

    status = 422
    code = "plan_refused"
