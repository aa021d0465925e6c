"""Tests that `up` learns of backends which models they cannot serve."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from sluicegate.gateway.supervisor.probes import broken_models
from sluicegate.gateway.supervisor.spec import ProcessRole, ProcessSpec, is_started
from sluicegate.wire.protocol import Report, ServingState
from tests.support.raw_server import RawServer

pytestmark = pytest.mark.anyio


def backend(address: str) -> ProcessSpec:
    return ProcessSpec(
        name="backend-eu-0",
        role=ProcessRole.BACKEND,
        argv=("true",),
        environment={},
        probe=is_started,
        address=address,
        stop_within=1.0,
    )


@asynccontextmanager
async def serving(body: bytes, heads: list[bytes]) -> AsyncIterator[ProcessSpec]:
    """Answer every request with `body`, and note its head."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + body)
        await writer.drain()

    async with RawServer(answer).open() as server:
        yield backend(server.url)


async def test_the_problems_of_all_backends_are_told_and_silent_ones_left_out() -> None:
    state = ServingState(
        backend_id="eu-0",
        region="eu",
        ready=True,
        missing=[],
        provider="cpu",
        models=[],
        problems={"mood": "model.yaml: no such field"},
        report=Report(queued_rows=0, queued_tokens=0),
    )
    heads: list[bytes] = []
    async with serving(msgspec.msgpack.encode(state), heads) as one, serving(b"!", heads) as odd:
        found = await broken_models([backend("http://127.0.0.1:1"), odd, one], "secret")

    assert found == {"mood": "model.yaml: no such field"}
    assert all(b"x-sluicegate-token: secret\r\n" in head for head in heads)


async def test_backends_without_problems_are_silent() -> None:
    assert await broken_models([], "") == {}
