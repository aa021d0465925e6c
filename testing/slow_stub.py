"""Answers as the stub backend does, but waits five milliseconds before each item."""

import asyncio

from testing.stub_backend import Reply, StubBackend, echo
from wire.protocol import Call


async def answer(stub: StubBackend, call: Call, reply: Reply) -> None:
    """Answer one item after another."""
    for index in range(len(call.items)):
        await asyncio.sleep(0.005)
        await reply.send(echo(call, index, stub.backend_id))
    await reply.end(stub.report)
