"""A body that a handler reads itself arrives in time, or the answer says what is wrong with it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from litestar import Litestar, Request, post
from litestar.params import FromPath

from sluicegate.gateway.api.json_body import read_json
from sluicegate.gateway.api.key_rotation import RotationRequest
from sluicegate.gateway.errors import GatewayError

pytestmark = pytest.mark.anyio


@post("/{empty:str}")
async def read(request: Request[Any, Any, Any], empty: FromPath[str]) -> str:
    try:
        found = await read_json(request, RotationRequest, empty=b"{}" if empty == "ok" else b"")
    except GatewayError as error:
        return f"{error.status} {error.detail}"
    return f"{found.former_valid_for}"


async def ask(body: bytes | AsyncIterator[bytes], path: str = "/no") -> str:
    app = Litestar([read], openapi_config=None, logging_config=None)
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]  # as a server's
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        return (await client.post(path, content=body)).text


async def test_a_body_that_stalls_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.gateway.api.json_body._TIMEOUT", 0.01)

    async def stalling() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    assert (await ask(stalling())).startswith("408 ")


async def test_a_body_may_be_left_out_where_a_route_says_so() -> None:
    assert await ask(b"", "/ok") == "86400.0"
    assert await ask(b"") == await ask(b" ") == "400 The body is empty; send JSON."


async def test_what_does_not_fit_is_named() -> None:
    for body, said in (
        (b"{", "not valid JSON"),
        (b"[]", "Expected `object`"),
        (b'{"x":1}', "unknown field `x`"),
        (b"\xff", "not valid JSON"),
        (b'{"x":' + b"[" * 100_000, ""),
    ):
        answer = await ask(body)

        assert answer.startswith("400 The body ")
        assert said in answer
