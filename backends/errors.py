"""The errors of a backend.

    BackendError                        status  code                 retryable
    ├── CallRefused                     the whole call
    │   ├── BadCall                     400     bad_call             no
    │   ├── Unauthorized                401     unauthorized         no
    │   ├── ModelNotFound               404     model_not_found      no
    │   ├── RevisionMismatch            409     revision_mismatch    yes
    │   ├── CallTooLarge                413     call_too_large       no
    │   └── NotReady                    503     not_ready            yes
    ├── ItemRefused                     422     (its own)            no
    ├── ModelFailed                     500     model_failed         yes
    │   ├── OutOfMemory                 500     model_failed         yes (as fewer rows)
    │   └── UpstreamFailed              500     model_failed         yes (as fewer rows)
    ├── Overloaded                      503     overloaded           yes (call or item)
    ├── ExecutorDied                    503     executor_died        yes
    ├── UpstreamUnavailable             503     upstream_unavailable yes
    └── DeadlineExceeded                504     deadline_exceeded    no
    StartProblem                        one line for the person who starts the process
    └── ModelProblem                    one model of the repository cannot be served

`code` is API. A message says what was wrong and what to do, and never holds input.
"""

from typing import ClassVar


class BackendError(Exception):
    """An error a caller is told of."""

    status: ClassVar[int] = 500
    code: str = "internal_error"
    retryable: ClassVar[bool] = True


class CallRefused(BackendError):
    """A call is refused as a whole."""


class BadCall(CallRefused):
    """The body is not a call of this version."""

    status = 400
    code = "bad_call"
    retryable = False


class Unauthorized(CallRefused):
    """The shared token is missing or wrong."""

    status = 401
    code = "unauthorized"
    retryable = False


class ModelNotFound(CallRefused):
    """The backend does not serve the model, or not for this task."""

    status = 404
    code = "model_not_found"
    retryable = False


class RevisionMismatch(CallRefused):
    """The backend runs another revision or profile; another backend may have the right one."""

    status = 409
    code = "revision_mismatch"


class CallTooLarge(CallRefused):
    """The body is over the limit."""

    status = 413
    code = "call_too_large"
    retryable = False


class NotReady(CallRefused):
    """The backend is draining, or what it needs is broken."""

    status = 503
    code = "not_ready"


class ItemRefused(BackendError):
    """The item or its parameters are wrong; `code` says how."""

    status = 422
    retryable = False

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class ModelFailed(BackendError):
    """The model could not compute this row."""

    status = 500
    code = "model_failed"


class OutOfMemory(ModelFailed):
    """The device has no memory for a batch of this size; it may have for half of it."""


class UpstreamFailed(ModelFailed):
    """Another server that is well did not compute the batch; a row of it may be to blame."""


class Overloaded(BackendError):
    """The queue is full or too slow for the time left; `retry_after` is when there will be room."""

    status = 503
    code = "overloaded"

    def __init__(self, detail: str, *, retry_after: float) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class ExecutorDied(BackendError):
    """The executor or a thread of it is gone for good."""

    status = 503
    code = "executor_died"


class UpstreamUnavailable(BackendError):
    """The server that runs the model does not answer now, or not as it should; another's may."""

    status = 503
    code = "upstream_unavailable"


class DeadlineExceeded(BackendError):
    """The item's time was over before its answer; `retry_after` is when it might be in time."""

    status = 504
    code = "deadline_exceeded"
    retryable = False

    def __init__(self, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class StartProblem(Exception):
    """The process cannot start; the message is one line that says what to do."""


class ModelProblem(StartProblem):
    """A model of the repository cannot be served; the message says which file and why."""
