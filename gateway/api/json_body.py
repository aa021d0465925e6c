"""Reads the JSON bodies of requests to all routes but inference."""

import asyncio
from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.serialization import decode_json
from litestar.types import Empty
from typing_extensions import override

from sluicegate.gateway.api.error_handling import misfit
from sluicegate.gateway.errors import InvalidRequest, RequestTimeout
from sluicegate.gateway.http.body_decoding import (
    BodyDecoder,
    UnknownField,
    convert_body,
    without_mark,
    without_nulls,
)

T = TypeVar("T")
_TIMEOUT = 30.0


async def read_json(request: Request[Any, Any, Any], kind: type[T], *, empty: bytes = b"") -> T:
    """Return the body as a `kind`; that of a request without one is `empty`, unless that is, too.

    Raises:
        RequestTimeout: it did not arrive in time.
        InvalidRequest: it is not JSON, or does not fit.
    """
    try:
        async with asyncio.timeout(_TIMEOUT):
            raw = await request.body() or empty
    except TimeoutError as error:
        raise RequestTimeout("The body did not arrive in time; send it faster.") from error
    if not raw.strip():
        raise InvalidRequest("The body is empty; send JSON.")
    try:
        return BodyDecoder(kind)(raw)
    except msgspec.ValidationError as error:
        raise misfit(error) from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error


class JsonRequest(Request[Any, Any, Any]):
    """Is a request whose handler takes a JSON body, which Litestar converts."""

    @override
    async def json(self) -> Any:
        """Return the values of the body without the nulls of optional fields.

        Raises:
            InvalidRequest: it has a field that the handler does not know.
        """
        if self._json is Empty:
            decoded = decode_json(without_mark(await self.body()) or b"null")
            field = self.route_handler.parsed_data_field
            self._json = decoded if field is None else _checked(decoded, field.raw)
        return self._json


def _checked(values: Any, kind: Any) -> Any:
    try:
        convert_body(values, kind)
    except UnknownField as error:
        raise misfit(error) from error
    except msgspec.ValidationError:
        pass  # Litestar finds the error, too, and names the parameter
    return without_nulls(values, kind)
