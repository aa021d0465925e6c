"""Writes errors in OpenAI's format: an object under `error`."""

import re

import msgspec
from typing_extensions import override

from sluicegate.gateway.errors import (
    AuthenticationFailed,
    BudgetExhausted,
    GatewayError,
    InvalidItem,
    InvalidRequest,
    ModelNotFound,
    PermissionDenied,
    RateLimited,
)
from sluicegate.gateway.http.problem_details import MEDIA_TYPE, ErrorFormat, Problem, problem

_BAD_REQUEST, _FAULT = 400, 500
# Finds the name of the invalid field in an error message.
_FIELD = re.compile(
    r"at `\$\.([^`]+)`|field `([^`]+)`|the route: `([^`]+)`:|^`([a-z_]+)` (?:must|has|may)"
)
_CODES: dict[type[GatewayError], str] = {
    AuthenticationFailed: "invalid_api_key",
    BudgetExhausted: "insufficient_quota",
    RateLimited: "rate_limit_exceeded",
}
_TYPES: dict[type[GatewayError], str] = {
    AuthenticationFailed: "authentication_error",
    BudgetExhausted: "insufficient_quota",
    PermissionDenied: "permission_error",
    RateLimited: "rate_limit_error",
}


class OpenAIErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong."""

    message: str
    """What was wrong, and what to do."""
    type: str
    """The type of the error in OpenAI's terms."""
    param: str | None
    """The name of the invalid field in the body, if a field is invalid."""
    code: str
    """An error code for programs. It stays the same between versions."""


class OpenAIError(msgspec.Struct, frozen=True, kw_only=True):
    """An error in OpenAI's format."""

    error: OpenAIErrorDetail
    """What went wrong."""


class ProblemAndError(Problem, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document that OpenAI's clients can read too."""

    error: OpenAIErrorDetail
    """What went wrong."""


class OpenAIErrorFormat(ErrorFormat):
    """Writes errors of OpenAI's routes. The status for an invalid item is 400 on these routes."""

    media = "application/json"
    type = OpenAIError

    @override
    def status(self, error: GatewayError) -> int:
        return _BAD_REQUEST if error.code == InvalidItem.code else error.status

    @override
    def encode(self, error: GatewayError, request_id: str) -> bytes:
        return msgspec.json.encode(OpenAIError(error=_detail(error)))


class ProblemErrorFormat(ErrorFormat):
    """Writes errors of native routes that OpenAI's clients use too."""

    media = MEDIA_TYPE.decode()
    type = ProblemAndError

    @override
    def encode(self, error: GatewayError, request_id: str) -> bytes:
        fields = msgspec.structs.asdict(problem(error, request_id))
        return msgspec.json.encode(ProblemAndError(**fields, error=_detail(error)))


OPENAI_ERRORS = OpenAIErrorFormat()
PROBLEMS_AND_ERRORS = ProblemErrorFormat()


def _detail(error: GatewayError) -> OpenAIErrorDetail:
    param = "model" if isinstance(error, ModelNotFound) else _field(error)
    code = _CODES.get(type(error), error.code)
    if isinstance(error, InvalidItem):
        param, code = f"input[{error.index}]", error.item_code
    default = "server_error" if error.status >= _FAULT else "invalid_request_error"
    return OpenAIErrorDetail(
        message=error.detail,
        type=_TYPES.get(type(error), default),
        param=param,
        code=code,
    )


def _field(error: GatewayError) -> str | None:
    """Return the name of the field or query parameter that an error message calls invalid."""
    found = _FIELD.search(error.detail) if isinstance(error, InvalidRequest) else None
    return found and next(name for name in found.groups() if name)
