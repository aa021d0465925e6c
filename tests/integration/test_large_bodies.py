"""Large bodies that arrive at once take no more of a worker than there is for them."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from testing.raw_http import Connection, post
from testing.stub_backend import StubBackend
from testing.valkey import Valkey
from testing.waiting import eventually
from tests.support.worker import classify, running_worker

pytestmark = pytest.mark.anyio
_LONGEST = 600_000
_LARGE = post("/v1/classify", classify("a" * 400_000))
_SMALL = post("/v1/classify", classify("a"))
_MORE_THAN_FIT = 32


async def test_bodies_beyond_the_room_are_refused_until_others_have_ended(
    tmp_path: Path, valkey_server: Valkey
) -> None:
    valkey_server.flush()  # tests before may have published a document
    bounds = {"max_body_bytes": _LONGEST}
    async with (
        StubBackend() as stub,
        running_worker(tmp_path, valkey_server.url, [stub], request=bounds) as worker,
    ):

        async def status(connection: Connection, sent: bytes) -> int:
            await connection.send(sent)
            return (await connection.response()).status

        async def is_refused() -> bool:
            async with worker.connect() as another:
                return await status(another, _LARGE) == 503

        async def is_answered() -> bool:
            return not await is_refused()

        async with AsyncExitStack() as stack:
            begun = []
            for _ in range(_MORE_THAN_FIT):
                begun.append(await stack.enter_async_context(worker.connect()))
                await begun[-1].send(_LARGE[:-10])
            await eventually(is_refused)
            small = await status(await stack.enter_async_context(worker.connect()), _SMALL)
            first = await status(begun[0], _LARGE[-10:])

        assert (small, first) == (200, 200)
        await eventually(is_answered)
