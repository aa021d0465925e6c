"""Reads the JSON body of a request to a route that is no inference route, in bounded time."""

import asyncio
from typing import Any, TypeVar

import msgspec
from litestar import Request

from gateway.api.error_handling import more_about
from gateway.errors import InvalidRequest, RequestTimeout

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
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        reason = f"The body does not fit the route: {error}.{more_about(str(error))}"
        raise InvalidRequest(reason) from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
