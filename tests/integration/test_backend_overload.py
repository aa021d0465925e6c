"""A backend with more to do than it can: requests are refused whole, what is given up is gone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from sluicegate.backends.executors.cost import CostModel
from sluicegate.wire.protocol import Refusal, Task
from testing.model_repository import DIMENSIONS, write_repository
from testing.waiting import eventually, until
from tests.support.backend_calls import AsgiExchange, Backend, running_backend
from tests.support.executors import PacedExecutor
from tests.support.gate import Gate

pytestmark = pytest.mark.anyio
WORDS = ["bad", "film", "money", "card", "is", "the", "about", "this"]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models")


@pytest.fixture
def gate() -> Gate:
    return Gate()


def refusal(exchange: AsgiExchange) -> Refusal:
    return msgspec.msgpack.decode(exchange.body, type=Refusal)


class Slow(PacedExecutor):
    """Says that a token takes it a second."""

    @override
    def __init__(self, pace: Callable[[int, int], None], *, dimensions: int) -> None:
        super().__init__(pace, dimensions=dimensions)
        self.cost = CostModel(base=0.0, padded=1.0, square=0.0)


@pytest.fixture
async def slow(models: Path, gate: Gate) -> AsyncIterator[Backend]:
    """A backend that is busy with a row of three tokens."""
    async with AsyncExitStack() as stack:
        executor = Slow(gate, dimensions=DIMENSIONS)
        backend = await stack.enter_async_context(running_backend(models, executor))
        stack.callback(gate.open)
        asked = asyncio.create_task(backend.ask("mood", Task.CLASSIFY, ["good"], remaining=600.0))
        await until(lambda: gate.arrived == 1)
        yield backend
        gate.open()
        await asked


async def test_the_items_of_a_request_are_refused_together_before_any_of_them_runs(
    slow: Backend, gate: Gate
) -> None:
    call = slow.call("mood", Task.CLASSIFY, WORDS, remaining=12.0)

    whole = await slow.exchange(msgspec.structs.replace(call, atomic=True)).run()
    queued = slow.engine.report().queued_rows
    parts = slow.exchange(call)
    running = asyncio.create_task(parts.run())
    await until(lambda: slow.engine.report().queued_rows > 0)
    parts.leave()
    await running

    assert (whole.status, refusal(whole).code) == (503, "overloaded")
    assert refusal(whole).retryable
    assert (refusal(whole).retry_after or 0) > 1.0
    assert queued == 0
    assert gate.arrived == 1


async def test_what_was_promised_to_a_request_is_not_promised_to_the_next(slow: Backend) -> None:
    call = slow.call("mood", Task.CLASSIFY, WORDS, remaining=60.0, atomic=True)
    first, second = slow.exchange(call), slow.exchange(call)
    running = asyncio.create_task(first.run())
    await until(lambda: slow.engine.report().queued_rows == len(WORDS))

    other = [f"{word} text" for word in WORDS]
    refused = await slow.exchange(
        slow.call("mood", Task.CLASSIFY, other, remaining=40.0, atomic=True)
    ).run()
    first.leave()
    await running
    await until(lambda: slow.engine.report().queued_rows == 0)
    again = asyncio.create_task(second.run())
    await until(lambda: slow.engine.report().queued_rows == len(WORDS))
    second.leave()
    await again

    assert refused.status == 503


async def test_a_request_is_refused_whole_for_the_item_with_the_least_time(slow: Backend) -> None:
    call = slow.call("mood", Task.CLASSIFY, WORDS, atomic=True)
    call.items[0] = msgspec.structs.replace(call.items[0], remaining=12.0)
    exchange = slow.exchange(call)

    running = asyncio.create_task(exchange.run())
    await until(lambda: running.done() or slow.engine.report().queued_rows > 0)
    exchange.leave()

    assert (await running).status == 503


async def test_time_promised_to_items_that_never_began_is_free_when_the_caller_leaves(
    slow: Backend,
) -> None:
    texts = [f"{word} {other}" for word in WORDS for other in WORDS] * 5
    first = slow.exchange(slow.call("mood", Task.CLASSIFY, texts, remaining=6_000.0, atomic=True))
    running = asyncio.create_task(first.run())
    await until(lambda: slow.engine.report().queued_rows > 0)
    first.leave()
    await running
    await until(lambda: slow.engine.report().queued_rows == 0)

    second = slow.exchange(slow.call("mood", Task.CLASSIFY, WORDS, remaining=60.0, atomic=True))
    again = asyncio.create_task(second.run())
    await until(lambda: again.done() or slow.engine.report().queued_rows == len(WORDS))
    is_admitted = not again.done()
    second.leave()
    await again

    assert is_admitted


@pytest.mark.parametrize(
    ("model", "task", "items", "rows"),
    [
        ("mood", Task.CLASSIFY, WORDS, len(WORDS)),
        ("topics", Task.CHOOSE, [{"prompt": "the film", "choices": WORDS}], len(WORDS) + 1),
    ],
    ids=["many items", "many rows"],
)
async def test_rows_of_who_left_are_taken_out_of_the_queue(
    model: str, task: Task, items: list[Any], rows: int, slow: Backend, gate: Gate
) -> None:
    exchange = slow.exchange(slow.call(model, task, items, remaining=600.0))
    running = asyncio.create_task(exchange.run())
    await until(lambda: slow.engine.report().queued_rows == rows)

    exchange.leave()
    await running

    assert slow.engine.report().queued_rows == 0
    assert slow.engine.report().queued_seconds == 0.0
    assert gate.arrived == 1


class Quick(PacedExecutor):
    """Says that a token takes it 5 ms."""

    @override
    def __init__(self, pace: Callable[[int, int], None], *, dimensions: int) -> None:
        super().__init__(pace, dimensions=dimensions)
        self.cost = CostModel(base=0.0, padded=5e-3, square=0.0)


async def test_single_rows_that_waited_in_vain_are_learned_from(models: Path, gate: Gate) -> None:
    # The gate is closed: whatever is expected to end in its time does not.
    executor = Quick(gate, dimensions=DIMENSIONS)
    async with running_backend(models, executor) as backend, AsyncExitStack() as stack:
        stack.callback(gate.open)
        first = asyncio.create_task(backend.ask("mood", Task.CLASSIFY, ["good"]))
        await until(lambda: gate.arrived == 1)
        call = backend.call("mood", Task.CLASSIFY, ["bad"], remaining=0.06)

        async def is_refused() -> bool:
            exchange = await backend.exchange(call).run()
            return exchange.status == 503 and refusal(exchange).code == "overloaded"

        admitted_at_first = not await is_refused()
        await eventually(is_refused)
        gate.open()
        await first

    assert admitted_at_first
