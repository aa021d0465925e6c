"""Defines the errors of a backend.

    BackendError                        status  code                 retryable
    ├── CallRefused                     (affects the whole call)
    │   ├── BadCall                     400     bad_call             no
    │   ├── Unauthorized                401     unauthorized         no
    │   ├── ModelNotFound               404     model_not_found      no
    │   ├── RevisionMismatch            409     revision_mismatch    yes
    │   ├── CallTooLarge                413     call_too_large       no
    │   └── NotReady                    503     not_ready            yes
    ├── ItemRefused                     422     (its own)            no
    ├── AlgorithmFailed                 500     algorithm_failed     no
    ├── ModelFailed                     500     model_failed         yes
    │   ├── OutOfMemory                 500     model_failed         yes (fewer rows)
    │   └── UpstreamFailed              500     model_failed         yes (fewer rows)
    ├── Overloaded                      503     overloaded           yes (call or item)
    ├── ExecutorDied                    503     executor_died        yes
    ├── UpstreamUnavailable             503     upstream_unavailable yes
    └── DeadlineExceeded                504     deadline_exceeded    no
    StartProblem                        the process cannot start
    └── ModelProblem                    a model cannot be served

`code` is part of the API. A message says what was wrong and what to do. It never contains input.
"""

import logging
from typing import ClassVar

_log = logging.getLogger(__name__)


class BackendError(Exception):
    """Reports a failure to a caller, who may retry after `retry_after` seconds if it is set."""

    status: ClassVar[int] = 500
    code: str = "internal_error"
    retryable: ClassVar[bool] = True
    retry_after: float | None = None


class CallRefused(BackendError):
    """Rejects a call as a whole."""


class BadCall(CallRefused):
    """Reports a body that is not a valid call of this protocol version."""

    status = 400
    code = "bad_call"
    retryable = False


class Unauthorized(CallRefused):
    """Reports that the shared token is missing or wrong."""

    status = 401
    code = "unauthorized"
    retryable = False


class ModelNotFound(CallRefused):
    """Reports that the backend does not serve this model, or that the model lacks the task."""

    status = 404
    code = "model_not_found"
    retryable = False


class RevisionMismatch(CallRefused):
    """Reports that the backend serves a different revision or profile than the call names."""

    status = 409
    code = "revision_mismatch"


class CallTooLarge(CallRefused):
    """Reports a body that is larger than the limit."""

    status = 413
    code = "call_too_large"
    retryable = False


class NotReady(CallRefused):
    """Reports that the backend is draining, or that the model is broken."""

    status = 503
    code = "not_ready"


class ItemRefused(BackendError):
    """Rejects an item or its parameters; `code` says why."""

    status = 422
    retryable = False

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class AlgorithmFailed(BackendError):
    """Reports an error in a model owner's algorithm; a retry elsewhere would fail, too."""

    code = "algorithm_failed"
    retryable = False


class ModelFailed(BackendError):
    """Reports that the model could not compute this row."""

    status = 500
    code = "model_failed"


class OutOfMemory(ModelFailed):
    """Reports that there is not enough memory for a batch of this size."""


class UpstreamFailed(ModelFailed):
    """Reports that a healthy upstream server failed on a batch; a row may be to blame."""


class Overloaded(BackendError):
    """Reports a full queue, or one in which the item would miss its deadline."""

    status = 503
    code = "overloaded"
    retry_after: float

    def __init__(self, detail: str, *, retry_after: float) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class ExecutorDied(BackendError):
    """Reports that the executor or its last thread has failed for good."""

    status = 503
    code = "executor_died"


class UpstreamUnavailable(BackendError):
    """Reports that the upstream server of the model does not answer properly."""

    status = 503
    code = "upstream_unavailable"


class DeadlineExceeded(BackendError):
    """Reports an item that missed its deadline."""

    status = 504
    code = "deadline_exceeded"
    retryable = False

    def __init__(self, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


def reported(error: BaseException, **extra: str) -> BackendError:
    """Return an error as callers see it; log it, with `extra`, if it is unexpected."""
    if isinstance(error, BackendError):
        return error
    _log.error("an item failed unexpectedly", exc_info=error, extra=extra)
    return BackendError("the backend failed on this item")


class StartProblem(Exception):
    """Reports that the process cannot start; the message is one line and says what to do."""


class ModelProblem(StartProblem):
    """Reports that a model cannot be served; the message names the file and the reason."""
