"""Writes errors in the format of the Open Inference Protocol: a string under `error`."""

import msgspec
from typing_extensions import override

from sluicegate.gateway.errors import GatewayError, InvalidItem
from sluicegate.gateway.http.problem_details import ErrorFormat


class OipError(msgspec.Struct, frozen=True, kw_only=True):
    """An error in the format of Triton and KServe."""

    error: str
    """What was wrong, and what to do."""
    code: str
    """An error code for programs. It stays the same between versions."""


class OipErrorFormat(ErrorFormat):
    """Writes errors of the routes below `/v2`."""

    media = "application/json"
    type = OipError

    @override
    def encode(self, error: GatewayError, request_id: str) -> bytes:
        code = error.item_code if isinstance(error, InvalidItem) else error.code
        return msgspec.json.encode(OipError(error=error.detail, code=code))


OIP_ERRORS = OipErrorFormat()
