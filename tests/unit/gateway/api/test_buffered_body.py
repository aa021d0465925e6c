"""Middleware reads a body at a cost that grows with its length alone."""

from typing import Any

import pytest

from gateway.api.body_budget import BodyMemoryBudget
from gateway.api.buffered_body import BufferedBody
from gateway.config.document import Document
from gateway.runtime.runtime import compile_runtime

CHUNKS = 200


class Chunk(bytes):
    """A chunk that counts how often its length is asked for."""

    asked = 0

    def __len__(self) -> int:
        Chunk.asked += 1
        return super().__len__()


@pytest.mark.anyio
async def test_a_chunk_is_looked_at_once_however_many_follow() -> None:
    left = CHUNKS

    async def receive() -> Any:
        nonlocal left
        left -= 1
        return {"type": "http.request", "body": Chunk(b"x"), "more_body": left > 0}

    scope: Any = {"headers": []}
    body = BufferedBody(receive, compile_runtime(Document(), 1), BodyMemoryBudget())

    assert await body.read(scope) == b"x" * CHUNKS
    assert body.is_whole
    assert Chunk.asked <= 2 * CHUNKS
