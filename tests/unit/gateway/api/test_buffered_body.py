"""Middleware reads a body at a cost that grows with its length alone."""

from typing import Any

import pytest
from typing_extensions import override

from gateway.api.buffered_body import BufferedBody, hold_body
from gateway.config.document import Document
from gateway.http.byte_budget import ByteBudget, HeldBytes
from gateway.runtime.runtime import Runtime, compile_runtime
from gateway.types import KeyId

CHUNKS = 200


class Chunk(bytes):
    """A chunk that counts how often its length is asked for."""

    asked = 0

    @override
    def __len__(self) -> int:
        Chunk.asked += 1
        return super().__len__()


def room(runtime: Runtime) -> HeldBytes:
    budget = ByteBudget(0, what="Large bodies", clock=lambda: 0.0)
    return hold_body(budget, runtime, KeyId("key"))


@pytest.mark.anyio
async def test_a_chunk_is_looked_at_once_however_many_follow() -> None:
    left = CHUNKS

    async def receive() -> Any:
        nonlocal left
        left -= 1
        return {"type": "http.request", "body": Chunk(b"x"), "more_body": left > 0}

    scope: Any = {"headers": []}
    runtime = compile_runtime(Document(), 1)
    body = BufferedBody(receive, runtime, room(runtime))

    assert await body.read(scope) == b"x" * CHUNKS
    assert body.is_whole
    assert Chunk.asked <= 2 * CHUNKS


@pytest.mark.anyio
async def test_long_bodies_of_no_declared_length_are_told_apart_by_their_heads() -> None:
    runtime = compile_runtime(Document(), 1)
    limit = runtime.document.request.max_body_bytes

    async def compared(text: bytes, length: bytes = b"") -> bytes:
        async def receive() -> Any:
            return {"type": "http.request", "body": text, "more_body": True}

        scope: Any = {"headers": [(b"content-length", length)] if length else []}
        body = BufferedBody(receive, runtime, room(runtime))
        await body.read(scope)
        assert not body.is_whole
        return body.compared

    first, second = b"a" * limit, b"b" * limit

    assert await compared(first + b"1") == await compared(first + b"22") == first
    assert await compared(second + b"1") == second
    assert await compared(first, b"%d" % (limit + 1)) == b""
