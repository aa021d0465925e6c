"""Writes errors in Hugging Face's format: a string under `error`."""

import msgspec
from typing_extensions import override

from sluicegate.gateway.errors import (
    GatewayError,
    InvalidItem,
    InvalidRequest,
    Overloaded,
    PayloadTooLarge,
    RateLimited,
    TaskNotSupported,
    UpstreamFailed,
    UpstreamUnavailable,
)
from sluicegate.gateway.http.problem_details import ErrorFormat

_FAULT = 500
_EMPTY = "empty_input"
# The status and the error type that TEI uses, for each error of the gateway.
_TEI_ERRORS: dict[type[GatewayError], tuple[int, str]] = {
    InvalidRequest: (422, "Validation"),
    InvalidItem: (422, "Validation"),
    PayloadTooLarge: (413, "Validation"),
    TaskNotSupported: (424, "Backend"),
    UpstreamFailed: (424, "Backend"),
    RateLimited: (429, "Overloaded"),
    Overloaded: (429, "Overloaded"),
    UpstreamUnavailable: (503, "Unhealthy"),
}


class HuggingFaceError(msgspec.Struct, frozen=True, kw_only=True):
    """An error in the format of `InferenceClient`."""

    error: str
    """What was wrong, and what to do."""
    code: str
    """An error code for programs. It stays the same between versions."""


class TeiError(msgspec.Struct, frozen=True, kw_only=True):
    """An error in TEI's format."""

    error: str
    """What was wrong, and what to do."""
    error_type: str
    """The type of the error in TEI's terms."""
    code: str
    """An error code for programs. It stays the same between versions."""


class HuggingFaceErrorFormat(ErrorFormat):
    """Writes errors of the routes for `InferenceClient`."""

    media = "application/json"
    type = HuggingFaceError

    @override
    def encode(self, error: GatewayError, request_id: str) -> bytes:
        return msgspec.json.encode(HuggingFaceError(error=error.detail, code=_code(error)))


class TeiErrorFormat(ErrorFormat):
    """Writes errors of TEI's routes, with the statuses that TEI uses."""

    media = "application/json"
    type = TeiError

    @override
    def status(self, error: GatewayError) -> int:
        return _tei_error(error)[0]

    @override
    def encode(self, error: GatewayError, request_id: str) -> bytes:
        kind = _tei_error(error)[1]
        written = TeiError(error=error.detail, error_type=kind, code=_code(error))
        return msgspec.json.encode(written)


HUGGING_FACE_ERRORS = HuggingFaceErrorFormat()
TEI_ERRORS = TeiErrorFormat()


def _code(error: GatewayError) -> str:
    return error.item_code if isinstance(error, InvalidItem) else error.code


def _tei_error(error: GatewayError) -> tuple[int, str]:
    if isinstance(error, InvalidItem) and error.item_code == _EMPTY:
        return 400, "Empty"
    default = "Backend" if error.status >= _FAULT else "Validation"
    return _TEI_ERRORS.get(type(error), (error.status, default))
