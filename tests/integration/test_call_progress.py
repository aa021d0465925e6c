"""A call that waits for long hears that work goes on: only what hangs is silent."""

import asyncio
import threading
import time
from itertools import groupby
from pathlib import Path

import pytest

from sluicegate.backends.api.calls import CallAuthenticator, CallHandler
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.tokenization import tokenizer
from sluicegate.wire.protocol import CALL_PATH, Done, Report, Task
from testing.model_repository import DIMENSIONS, write_model, write_repository
from testing.waiting import until
from tests.support.backend_calls import AsgiExchange, Backend, running_backend
from tests.support.executors import DummyExecutor, PacedExecutor
from tests.support.gate import Gate

pytestmark = pytest.mark.anyio


def report_often(backend: Backend) -> None:
    """Have the backend report progress every few milliseconds."""
    calls = CallHandler(
        core=backend.engine,
        authenticator=CallAuthenticator(""),
        tracing=NO_TRACING,
        clock=time.monotonic,
        max_body_bytes=10**6,
        progress=0.01,
    )
    backend.routes._handlers[CALL_PATH] = ("POST", calls)


def answers(exchange: AsgiExchange) -> int:
    return sum(isinstance(frame, Done) for frame in exchange.frames)


@pytest.mark.parametrize("items", [["bad"], ["bad", "film"]], ids=["one item", "two items"])
async def test_a_call_that_waits_while_batches_run_is_not_silent(
    items: list[str], tmp_path: Path
) -> None:
    gate = Gate()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    async with running_backend(write_repository(tmp_path / "models"), executor) as backend:
        report_often(backend)
        first = asyncio.create_task(backend.ask("mood", Task.CLASSIFY, ["good"]))
        await until(lambda: gate.arrived == 1)
        exchange = backend.exchange(backend.call("mood", Task.CLASSIFY, items))
        running = asyncio.create_task(exchange.run())
        await until(lambda: backend.engine.report().queued_rows == len(items))

        gate.let_one_pass()
        await until(lambda: bool(exchange.frames))
        early = exchange.frames
        gate.open()
        await asyncio.gather(first, running)
        *others, last = exchange.frames

    assert all(isinstance(frame, Report) for frame in early)
    assert sum(isinstance(frame, Done) for frame in others) == len(items)
    assert isinstance(last, Report)
    assert not exchange.sent[-1].get("more_body", False)


@pytest.mark.parametrize("items", [1, 2], ids=["one item", "two items"])
async def test_a_call_that_an_algorithm_works_on_is_not_silent(items: int, tmp_path: Path) -> None:
    """A gateway would try its items elsewhere, and hang the algorithm there, too."""
    models = write_repository(tmp_path / "models")
    manifest = {"kind": "algorithm", "algorithm": "custom", "code": "own.py", "uses": ["mood"]}
    folder = write_model(models, "own", manifest | {"tasks": ["infer"]})
    code = """
import asyncio
import os


async def run(item, ask):
    while not os.path.exists(item):
        await asyncio.sleep(0)
    return item
"""
    (folder / "own.py").write_text(code)
    ends = [tmp_path / f"end {item}" for item in range(items)]
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as backend:
        report_often(backend)
        exchange = backend.exchange(backend.call("own", Task.INFER, list(map(str, ends))))
        running = asyncio.create_task(exchange.run())

        for end in ends:
            known = len(exchange.frames)
            await until(lambda known=known: len(exchange.frames) > known)  # type: ignore[misc]
            end.touch()
            await until(lambda end=end: answers(exchange) > ends.index(end))  # type: ignore[misc]
        await running

    kinds = [kind for kind, _ in groupby(exchange.frames, type)]
    assert kinds == [Report, Done] * items + [Report]


async def test_a_call_that_waits_while_texts_are_read_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "_SMALL_CHARACTERS", 0)  # no text is read on the loop
    executor = DummyExecutor(dimensions=DIMENSIONS)
    async with running_backend(write_repository(tmp_path / "models"), executor) as backend:
        report_often(backend)
        (encoder,) = backend.engine.model_set.all_encoders()
        is_free = threading.Event()
        reader = encoder.pipeline.tokenizer
        threads = reader._row_queue._pool
        for _ in range(threads._max_workers):
            threads.submit(is_free.wait)
        exchange = backend.exchange(backend.call("mood", Task.CLASSIFY, ["bad"]))
        running = asyncio.create_task(exchange.run())
        await until(lambda: reader._row_queue._waiting > 0)

        reader.encode_now(["a text before it"])
        await until(lambda: bool(exchange.frames))
        early = exchange.frames
        is_free.set()
        await running

    assert all(isinstance(frame, Report) for frame in early)
    assert answers(exchange) == 1


async def test_a_call_is_silent_while_texts_are_read_beside_a_batch_that_hangs(
    tmp_path: Path,
) -> None:
    """A gateway would keep a backend whose device hangs as long as requests come."""
    gate = Gate()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    async with running_backend(write_repository(tmp_path / "models"), executor) as backend:
        call = backend.call("mood", Task.CLASSIFY, ["bad", "film"])
        _, work = backend.engine.admit(call)
        running = asyncio.create_task(backend.exchange(call).run())
        await until(lambda: gate.arrived == 1)

        await backend.ask("mood", Task.TOKENIZE, ["a text"])
        has_progressed = work.has_progressed()
        gate.open()
        await running

    assert not has_progressed


async def test_a_bulk_call_that_a_pause_keeps_waiting_is_not_silent(tmp_path: Path) -> None:
    """A gateway would count the backend as one that hangs, and eject it."""
    executor = DummyExecutor(dimensions=DIMENSIONS)
    async with running_backend(write_repository(tmp_path / "models"), executor) as backend:
        report_often(backend)
        pause = backend.engine._device.bulk
        pause.until = time.monotonic() + 60.0
        call = backend.call("mood", Task.CLASSIFY, ["bad", "film"], lane="bulk")
        exchange = backend.exchange(call)
        running = asyncio.create_task(exchange.run())

        await until(lambda: bool(exchange.frames))
        early = exchange.frames
        queued = backend.engine.report()
        # An interactive row that is done ends the wait for the pause's end.
        pause.until = 0.0
        await backend.ask("mood", Task.CLASSIFY, ["good"])
        await running

    assert all(isinstance(frame, Report) for frame in early)
    assert (queued.queued_rows, queued.queued_seconds) == (2, 0.0)
    assert answers(exchange) == 2
