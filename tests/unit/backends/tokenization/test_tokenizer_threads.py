"""What askers get when the tokenizer's threads end, fall behind, or are not needed any more."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import ParamSpec, TypeVar, override

from sluicegate.backends.app import make_routes
from sluicegate.backends.errors import ExecutorDied, Overloaded
from sluicegate.backends.qualification.qualify import qualify_unmeasured
from sluicegate.backends.serving.loading import LoadingTools
from sluicegate.backends.serving.reloading import Repository
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.tokenization.tokenizer import Tokenizer
from sluicegate.backends.types import Encoding, Text
from sluicegate.wire.protocol import Failed, Task
from testing.model_repository import DIMENSIONS, make_tokenizer, write_repository
from testing.waiting import until
from tests.support.backend_calls import Backend
from tests.support.executors import DummyExecutor
from tests.support.loop_turns import longest_hold

pytestmark = pytest.mark.anyio
P = ParamSpec("P")
T = TypeVar("T")
LONG = "good bad film money " * 200


class ThreadlessPool(ThreadPoolExecutor):
    """Takes jobs in a system that starts no thread."""

    @override
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        raise RuntimeError("can't start new thread")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    make_tokenizer().save(str(path))
    return path


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def busy(pool: ThreadPoolExecutor) -> Iterator[threading.Event]:
    """Keep the pool's thread busy until the event is set."""
    free = threading.Event()
    pool.submit(free.wait)
    yield free
    free.set()


async def test_every_asker_is_told_when_no_thread_can_be_started(file: Path) -> None:
    with ThreadlessPool(1) as pool:
        tokenizer = Tokenizer(file, pool=pool)

        asked = [tokenizer.encode([LONG]), tokenizer.ids([LONG]), tokenizer.segments([LONG])]
        async with asyncio.timeout(60.0):
            answers = await asyncio.gather(*asked, return_exceptions=True)

    assert [type(answer) for answer in answers] == [ExecutorDied] * 3
    assert tokenizer.failure == "a tokenizer thread died with `RuntimeError`"


async def test_a_job_that_is_called_off_is_answered(
    file: Path, pool: ThreadPoolExecutor, busy: threading.Event
) -> None:
    tokenizer = Tokenizer(file, pool=pool)
    asker = asyncio.create_task(tokenizer.encode([LONG]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    pool.shutdown(wait=False, cancel_futures=True)

    async with asyncio.timeout(60.0):
        with pytest.raises(ExecutorDied):
            await asker


async def test_a_backend_without_tokenizer_threads_is_not_ready_and_says_so(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    settings = BackendSettings(models=write_repository(tmp_path / "models"), retire_after=1.0)
    tools = LoadingTools(
        settings=settings,
        tracing=NO_TRACING,
        clock=time.monotonic,
        tokenizer_pool=pool,
        open_executor=lambda _: DummyExecutor(dimensions=DIMENSIONS),
        qualify=qualify_unmeasured,
    )
    async with Repository(tools) as repository:
        backend = Backend(make_routes(repository, settings, NO_TRACING), repository)
        pool.shutdown()
        (outcome,) = await backend.ask("tiny", Task.EMBED, ["good film"], remaining=60.0)
        many = await backend.ask("tiny", Task.EMBED, ["good film"] * 256, remaining=60.0)
        ready = await backend.get("/health/ready")
        live = await backend.get("/health/live")
        later = await backend.exchange(backend.call("tiny", Task.EMBED, ["good"])).run()

    assert not isinstance(outcome, Failed)
    assert {(o.code, o.retryable) for o in many if isinstance(o, Failed)} == {
        ("executor_died", True)
    }
    assert (ready.status, live.status, later.status) == (503, 503, 503)


async def test_texts_whose_asker_has_left_are_not_read(
    file: Path, pool: ThreadPoolExecutor, busy: threading.Event
) -> None:
    read: list[Text] = []
    tokenizer = WatchedTokenizer(file, pool, read)
    gone = asyncio.create_task(tokenizer.encode(["gone " * 500]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    stays = asyncio.create_task(tokenizer.encode(["stays " * 500]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    gone.cancel()
    await asyncio.sleep(0)
    busy.set()
    await stays

    assert [str(text).split()[0] for text in read] == ["stays"]


async def test_text_that_would_wait_for_many_seconds_is_refused(
    file: Path, pool: ThreadPoolExecutor, busy: threading.Event
) -> None:
    tokenizer = Tokenizer(file, pool=pool)
    waiting = asyncio.create_task(tokenizer.encode(["a" * 17 * 1024 * 1024]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    with pytest.raises(Overloaded):
        await tokenizer.encode([LONG])
    waiting.cancel()
    await until(waiting.done)
    busy.set()


async def test_text_that_would_wait_is_counted_before_it_is_taken(
    file: Path, pool: ThreadPoolExecutor, busy: threading.Event
) -> None:
    tokenizer = Tokenizer(file, pool=pool)
    waiting = asyncio.create_task(tokenizer.encode(["a" * 9 * 1024 * 1024]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    async with asyncio.timeout(60.0):
        with pytest.raises(Overloaded):
            await tokenizer.encode(["a" * 9 * 1024 * 1024])
    waiting.cancel()
    await until(waiting.done)
    busy.set()


@pytest.mark.parametrize("task", ["count", "show", "decode"])
async def test_texts_whose_tokens_are_shown_hold_up_no_rows(
    file: Path, pool: ThreadPoolExecutor, busy: threading.Event, task: str
) -> None:
    much = 17 * 1024 * 1024
    with ThreadPoolExecutor(1) as rows:
        tokenizer = Tokenizer(file, pool=rows, token_pool=pool)
        asked: dict[str, Coroutine[Any, Any, Any]] = {
            "count": tokenizer.count("a" * much),
            "show": tokenizer.show("a" * much, add_special_tokens=True),
            "decode": tokenizer.decode([5] * much, skip_special_tokens=True),
        }
        waiting = asyncio.create_task(asked.pop(task))
        for other in asked.values():
            other.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        async with asyncio.timeout(60.0):
            with pytest.raises(Overloaded):
                await tokenizer.count(LONG)
            encodings = await tokenizer.encode([LONG])

    assert len(encodings[0].ids) == 802
    waiting.cancel()
    await until(waiting.done)
    busy.set()


class WatchedTokenizer(Tokenizer):
    """Notes the texts that it reads."""

    def __init__(self, path: Path, pool: ThreadPoolExecutor, read: list[Text]) -> None:
        super().__init__(path, pool=pool)
        self._seen = read

    @override
    def encode_now(self, texts: Sequence[Any]) -> list[Encoding]:
        self._seen += texts
        return super().encode_now(texts)


async def test_many_tokens_are_decoded_without_the_interpreter_lock(
    file: Path, pool: ThreadPoolExecutor
) -> None:
    tokenizer = Tokenizer(file, pool=pool)
    (ids,) = await tokenizer.ids(["good film"])

    many = ids.tolist() * 100_000

    # On a busy machine, the loop waits for a core in some of the runs.
    holds = [await longest_hold(tokenizer.decode(many, skip_special_tokens=True)) for _ in range(4)]

    assert min(holds) < 0.5
