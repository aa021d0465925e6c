"""Writes errors as OpenAI's API does, for the routes of files and batches."""

import msgspec

from gateway.errors import (
    AuthenticationFailed,
    GatewayError,
    InternalError,
    PermissionDenied,
    RateLimited,
)

PREFIXES = ("/v1/files", "/v1/batches")
"""The routes whose errors have this form."""


class OpenAIError(msgspec.Struct, frozen=True, kw_only=True):
    """What was wrong, in the form that OpenAI's clients read."""

    message: str
    """What was wrong, and what to do."""
    type: str
    """The kind of the error."""
    param: str | None = None
    """The parameter that is to blame."""
    code: str | None = None
    """What programs should look at; it is stable."""


class OpenAIErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an answer that reports an error."""

    error: OpenAIError


def encode_openai_error(error: GatewayError) -> bytes:
    """Return the body that reports `error`."""
    return msgspec.json.encode(
        OpenAIErrorBody(error=OpenAIError(message=error.detail, type=_type(error), code=error.code))
    )


def _type(error: GatewayError) -> str:
    if isinstance(error, AuthenticationFailed):
        return "authentication_error"
    if isinstance(error, PermissionDenied):
        return "permission_error"
    if isinstance(error, RateLimited):
        return "rate_limit_error"
    return "server_error" if error.status >= InternalError.status else "invalid_request_error"
