"""Requests of the open loop that get no answer are seen."""

import asyncio
import contextlib
import itertools
from collections import Counter
from selectors import SelectorKey  # noqa: TID251 - a type

import pytest
from typing_extensions import override

from loadtests.generator import Target
from loadtests.open_loop import open_loop
from loadtests.simulate.virtual_time import TimedSelector, VirtualTimeLoop


class QuietTime(TimedSelector):
    """Counts only time in which nothing happens, so that a slow machine is not out of patience."""

    @override
    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        events = super().select(timeout)
        if not events:
            self.now += timeout or 0.0
        return events


async def ends(ending: str) -> tuple[int, Counter[int]]:
    """Return how many requests a server got that leaves every third alone, and their ends."""
    received = itertools.count(1)
    tasks: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.closing(writer):
            while await reader.read(65_536):
                if next(received) % 3:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                elif ending == "closes":
                    break

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        answers = await open_loop(
            Target(host="127.0.0.1", port=server.sockets[0].getsockname()[1], path="/"),
            itertools.repeat(b"{}"),
            rate=300.0,
            duration=0.2,
            patience=0.1,
        )
        await asyncio.gather(*filter(None, tasks))
    return next(received) - 1, Counter(one.status for one in answers)


@pytest.mark.parametrize("ending", ["closes", "is silent"])
def test_a_request_without_an_answer_is_counted_as_one(ending: str) -> None:
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(QuietTime())) as runner:
        sent, statuses = runner.run(ends(ending))

    assert sent > 2
    assert statuses == {0: sent // 3, 200: sent - sent // 3}
