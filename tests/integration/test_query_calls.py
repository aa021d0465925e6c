"""Calls whose items are one query each: what is ready does not wait for what is not."""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sluicegate.backends.algorithms.base import QueryAlgorithm
from sluicegate.backends.serving.items import Decoders, ItemAnswerer
from sluicegate.backends.serving.queries import ITEMS_AT_ONCE, QueryCall
from sluicegate.backends.telemetry.otel_tracing import OtelTracing
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.tokenization.tokenizer import TextKind, Tokenizer
from sluicegate.wire.protocol import Call, Done, Failed, Task
from testing.model_repository import DIMENSIONS, write_repository
from testing.waiting import WAIT_LIMIT, until
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor, PacedExecutor
from tests.support.gate import Gate

pytestmark = pytest.mark.anyio
WORDS = ["".join(letters) for letters in itertools.product("abcdefghi", repeat=3)]
# Sixteen of them are too much for the loop.
LONG = [f"{word} {'good ' * 26}" for word in WORDS]
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    executor = DummyExecutor(dimensions=DIMENSIONS)
    models = write_repository(tmp_path / "models")
    async with running_backend(models, executor, tokenizer_threads=1) as running:
        yield running


@contextmanager
def busy_tokenizer(backend: Backend) -> Iterator[threading.Event]:
    """Keep the tokenizer's thread busy until the event is set."""
    free = threading.Event()
    (encoder,) = backend.engine.model_set.all_encoders()
    encoder.pipeline.tokenizer._row_queue._pool.submit(free.wait, 60.0)
    try:
        yield free
    finally:
        free.set()


def with_time(call: Call, index: int, remaining: float) -> Call:
    items = list(call.items)
    items[index] = msgspec.structs.replace(items[index], remaining=remaining)
    return msgspec.structs.replace(call, items=items)


def query_of(backend: Backend, call: Call, *, received: float | None = None) -> QueryCall:
    """Return a call that came at `received`, admitted but not begun."""
    entry, work = backend.engine.admit(call)
    answerer = ItemAnswerer(
        core=backend.engine,
        entry=entry,
        work=work,
        call=call,
        decoders=Decoders(),
        received=time.monotonic() if received is None else received,
        clock=time.monotonic,
        tracing=NO_TRACING,
    )
    algorithm = answerer.algorithm
    assert isinstance(algorithm, QueryAlgorithm)
    return QueryCall(answerer, algorithm, lambda: None)


async def test_answers_are_sent_while_the_next_items_are_tokenized(tmp_path: Path) -> None:
    gate = Gate()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    models = write_repository(tmp_path / "models")
    async with running_backend(models, executor, tokenizer_threads=1) as backend:
        exchange = backend.exchange(backend.call("mood", Task.CLASSIFY, LONG[:300]))
        running = asyncio.create_task(exchange.run())
        await until(lambda: gate.arrived == 1)
        with busy_tokenizer(backend):
            gate.open()
            await until(lambda: len(exchange.frames) >= 256)
        await running

    *outcomes, _ = (frame for frame in exchange.frames if isinstance(frame, Done | Failed))
    assert len(outcomes) == 299
    assert all(isinstance(outcome, Done) for outcome in outcomes)


async def test_long_texts_are_tokenized_some_at_a_time(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    encode_each = Tokenizer.tokenize_each

    async def noted(self: Tokenizer, groups: list[list[str]], kind: TextKind) -> object:
        sizes.append(sum(len(text) for group in groups for text in group))
        return await encode_each(self, groups, kind)

    monkeypatch.setattr(Tokenizer, "tokenize_each", noted)
    texts = [f"{word} good{' ' * 2_500}" for word in WORDS[:200]]
    exchange = backend.exchange(backend.call("mood", Task.CLASSIFY, ["", *texts, *LONG[:20]]))
    async with asyncio.timeout(WAIT_LIMIT):
        await exchange.run()

    outcomes = [frame for frame in exchange.frames if isinstance(frame, Done | Failed)]
    assert sum(isinstance(outcome, Done) for outcome in outcomes) == 220
    assert len(sizes) > 1
    assert max(sizes) < 140_000


async def test_what_fails_before_it_is_tokenized_is_sent_at_once(backend: Backend) -> None:
    call = backend.call("mood", Task.CLASSIFY, ["", *LONG[:20]])
    call = with_time(call, 1, 0.05)
    exchange = backend.exchange(call)
    with busy_tokenizer(backend):
        running = asyncio.create_task(exchange.run())
        await until(lambda: len(exchange.frames) >= 4)
        early = exchange.frames
    await running

    codes = [frame.code for frame in early if isinstance(frame, Failed)]
    assert codes == ["empty_input", "deadline_exceeded"]
    assert sum(isinstance(frame, Done) for frame in exchange.frames) == 19


async def test_each_item_on_a_stalled_device_expires_at_its_own_deadline(tmp_path: Path) -> None:
    gate = Gate()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    async with running_backend(write_repository(tmp_path), executor) as backend:
        call = backend.call("mood", Task.CLASSIFY, ["good", "bad", "film"])
        call = with_time(with_time(call, 0, 0.2), 1, 0.05)
        exchange = backend.exchange(call)
        running = asyncio.create_task(exchange.run())
        await until(lambda: sum(isinstance(frame, Failed) for frame in exchange.frames) == 2)
        gate.open()
        await running

    assert [frame.index for frame in exchange.frames if isinstance(frame, Done)] == [2]


async def test_texts_that_cannot_be_tokenized_fail_at_once(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def encode_each(self: Tokenizer, groups: object) -> object:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Tokenizer, "encode_each", encode_each)
    exchange = backend.exchange(backend.call("mood", Task.CLASSIFY, LONG[:300]))
    async with asyncio.timeout(WAIT_LIMIT):
        await exchange.run()

    failed = [frame for frame in exchange.frames if isinstance(frame, Failed)]
    assert len(failed) == 300
    assert {frame.detail for frame in failed} == {"the backend failed on this item"}


async def test_tokenization_that_nobody_waits_for_any_more_has_a_span(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    executor = DummyExecutor(dimensions=DIMENSIONS)
    async with running_backend(
        write_repository(tmp_path), executor, tracing=OtelTracing(provider), tokenizer_threads=1
    ) as backend:
        call = backend.call("mood", Task.CLASSIFY, LONG[:20], traceparent=TRACEPARENT)
        exchange = backend.exchange(call)
        with busy_tokenizer(backend):
            running = asyncio.create_task(exchange.run())
            await until(lambda: backend.engine.calls_in_flight == 1)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            exchange.leave()
            await running
            await asyncio.sleep(0)
    provider.shutdown()

    names = [span.name for span in exporter.get_finished_spans()]
    assert names.count("tokenization") == names.count("POST /v1/call") == 20


async def test_an_item_that_the_end_of_another_ended_is_not_ended_again(backend: Backend) -> None:
    """Rows that are withdrawn bring those of other items to a queue that was closed meanwhile."""
    call = backend.call("mood", Task.CLASSIFY, ["good", "bad", "film"])
    query = query_of(backend, call)
    query.begin()
    backend.batchers[0].submissions.queue.close()
    query.close()

    ends = {what: n for (_, _, what), n in backend.engine._items.items()}
    assert ends == {"cancelled": 1, "failed": 2}


async def test_the_time_of_an_item_runs_from_when_its_call_came(backend: Backend) -> None:
    call = with_time(backend.call("mood", Task.CLASSIFY, ["good", "bad"]), 0, 3.0)
    query = query_of(backend, call, received=time.monotonic() - 5.0)

    query.begin()
    outcomes = query.take()
    query.close()

    assert [(each.index, getattr(each, "code", "")) for each in outcomes] == [
        (0, "deadline_exceeded")
    ]


async def test_no_more_than_some_items_of_a_call_are_in_progress(tmp_path: Path) -> None:
    gate = Gate()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    async with running_backend(write_repository(tmp_path), executor) as backend:
        query = query_of(backend, backend.call("mood", Task.CLASSIFY, ["", *WORDS[:600]]))
        query.begin()
        while query.take():
            query.begin()
        await until(lambda: gate.arrived > 0)
        in_progress = len(query._open)
        gate.open()
        query.close()

    assert in_progress == ITEMS_AT_ONCE


async def test_items_of_a_caller_that_left_are_not_begun(backend: Backend) -> None:
    exchange = backend.exchange(backend.call("mood", Task.CLASSIFY, LONG[:300]))
    with busy_tokenizer(backend):
        running = asyncio.create_task(exchange.run())
        await until(lambda: backend.engine.calls_in_flight == 1)
        exchange.leave()
        await running
    await backend.ask("mood", Task.CLASSIFY, LONG[300:320])

    ends = {what: n for (_, _, what), n in backend.engine.snapshot().items.items()}
    assert ends.keys() == {"cancelled", "done"}
    assert ends["done"] == 20
