"""Both clients of the package `sluicegate` against a worker on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from sluicegate import (
    AsyncSluicegate,
    AuthenticationFailed,
    DeadlineExceeded,
    InvalidItem,
    Labels,
    NoAnswer,
    NotFound,
    Options,
    Progress,
    RateLimited,
    Sluicegate,
    Usage,
)
from sluicegate.gateway.types import Rule
from sluicegate.wire.protocol import Call, Failed
from testing.certificates import Authority
from testing.raw_http import KEY
from testing.stub_backend import Reply, StubBackend, answer, echo, hang
from tests.support.worker import RunningWorker, running_worker

pytestmark = pytest.mark.anyio
T = TypeVar("T")
# One comes back each 100 ms.
_SOON = Rule(name="burst", unit="requests", capacity=3, window=0.3)
_LATE = Rule(name="hour", unit="requests", capacity=5, window=3600.0)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def stub(anyio_backend: str) -> AsyncIterator[StubBackend]:
    async with StubBackend() as running:
        yield running


@pytest.fixture(scope="module")
async def worker(
    stub: StubBackend, valkey_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningWorker]:
    valkey_server.flush()
    folder = tmp_path_factory.mktemp("own-client")
    async with running_worker(
        folder, valkey_server.url, [stub], request={"max_items": 50}
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def usual(stub: StubBackend) -> None:
    """The backend answers, whatever a test before asked of it."""
    stub.behaviour = answer


def url(worker: RunningWorker) -> str:
    return f"http://127.0.0.1:{worker.port}"


@pytest.fixture
async def client(worker: RunningWorker) -> AsyncIterator[AsyncSluicegate]:
    async with AsyncSluicegate(url(worker), key=KEY) as opened:
        yield opened


async def blocking(worker: RunningWorker, call: Callable[[Sluicegate], T]) -> T:
    """Return what `call` returns in a thread: the worker needs the event loop."""

    def run() -> T:
        with Sluicegate(url(worker), key=KEY) as opened:
            return call(opened)

    return await asyncio.to_thread(run)


async def test_both_clients_answer_alike(worker: RunningWorker, client: AsyncSluicegate) -> None:
    first = await client.infer("stub", [{"n": 1}], parameters={"p": 2})
    again = await blocking(worker, lambda one: one.infer("stub", [{"n": 1}], parameters={"p": 2}))

    assert (
        first.results
        == again.results
        == [{"echo": {"n": 1}, "backend": first.results[0]["backend"]}]
    )
    assert (first.usage.computed, again.usage.hit) == (1, 1)
    assert first.request_id != again.request_id
    assert "hit" in again.cache_status


async def test_models_usage_and_health_are_read(
    worker: RunningWorker, client: AsyncSluicegate
) -> None:
    (listed,) = (await client.list_models()).data

    assert await client.get_model("stub") == listed
    assert listed.labels == ["a", "b"]
    assert (await client.is_live()).status == "live"
    assert (await client.is_ready()).ready
    assert (await client.get_usage(since="2026-01-01", group_by=["model", "day"])).data == []


async def test_problems_are_errors_of_their_own(
    worker: RunningWorker, client: AsyncSluicegate
) -> None:
    with pytest.raises(NotFound, match="model_not_found") as caught:
        await client.embed("missing", "a")
    assert caught.value.request_id.startswith("req_")
    async with AsyncSluicegate(url(worker), key="sk-of-nobody-at-all-0000") as stranger:
        with pytest.raises(AuthenticationFailed):
            await stranger.list_models()
    with pytest.raises(NotFound):
        await blocking(worker, lambda one: one.get_model("missing"))


async def test_the_deadline_is_that_of_the_gateway(
    stub: StubBackend, client: AsyncSluicegate
) -> None:
    stub.behaviour = hang

    with pytest.raises(DeadlineExceeded, match="X-Request-Timeout"):
        await client.with_options(timeout=0.2).infer("stub", ["never answered"])


async def test_a_gateway_that_is_not_there_is_an_error_that_says_so() -> None:
    async with AsyncSluicegate("http://127.0.0.1:1", key=KEY, options=Options(retries=1)) as nobody:
        with pytest.raises(NoAnswer, match="did not answer"):
            await nobody.list_models()


async def test_a_gateway_whose_certificate_nobody_vouches_for_is_told_no_key(
    tmp_path: Path,
) -> None:
    once = Options(retries=0)
    async with StubBackend(certificate=Authority(tmp_path).server()) as imposter:
        async with AsyncSluicegate(imposter.url, key=KEY, options=once) as client:
            with pytest.raises(NoAnswer, match="CERTIFICATE_VERIFY_FAILED"):
                await client.list_models()

        assert imposter.headers == []


async def test_a_long_list_is_answered_in_its_order(
    worker: RunningWorker, client: AsyncSluicegate
) -> None:
    numbers = list(range(230))
    reports: list[Progress] = []

    with pytest.raises(Exception, match="payload_too_large"):
        await client.infer("stub", numbers)
    parts = client.in_parts(size=50, concurrency=3, progress=reports.append)
    found = [result["echo"] async for result in parts.infer("stub", numbers)]
    blocked = await blocking(
        worker,
        lambda one: [x["echo"] for x in one.in_parts(size=40).infer("stub", iter(numbers))],
    )

    assert found == blocked == numbers
    assert [report.done for report in reports] == [50, 100, 150, 200, 230]
    assert {report.total for report in reports} == {230}
    assert reports[-1].usage == Usage(items=230, computed=230, rows=230, tokens=920)


async def test_a_list_is_read_as_its_results_are_taken(
    worker: RunningWorker, client: AsyncSluicegate
) -> None:
    def endless(read: list[int]) -> Any:
        while True:
            read.append(len(read))
            yield read[-1]

    def first(one: Sluicegate) -> tuple[Any, int]:
        read: list[int] = []
        results = one.in_parts(size=2, concurrency=3).infer("stub", endless(read))
        result = next(results)
        results.close()  # type: ignore[attr-defined]  # it is a generator
        return result["echo"], len(read)

    read: list[int] = []
    results = client.in_parts(size=2, concurrency=3).infer("stub", endless(read))
    result = await anext(results)
    await results.aclose()  # type: ignore[attr-defined]  # it is a generator

    assert (result["echo"], len(read)) == await blocking(worker, first) == (0, 6)


async def refuse_empty_texts(stub: StubBackend, call: Call, reply: Reply) -> None:
    for index, item in enumerate(call.items):
        if msgspec.msgpack.decode(item.body):
            await reply.send(echo(call, index, stub.backend_id))
        else:
            refused = Failed(
                index=index, status=422, code="empty_input", detail="It is empty.", retryable=False
            )
            await reply.send(refused)
    await reply.end(stub.report)


async def test_a_part_that_fails_names_the_item_of_the_whole_list(
    stub: StubBackend, worker: RunningWorker, client: AsyncSluicegate
) -> None:
    stub.behaviour = refuse_empty_texts
    texts = [f"text {n}" for n in range(30)]
    texts[17] = ""

    async def take() -> None:
        async for _ in client.in_parts(size=5).classify("stub", texts):
            pass

    with pytest.raises(InvalidItem) as caught:
        await take()
    with pytest.raises(InvalidItem) as blocked:
        await blocking(worker, lambda one: list(one.in_parts(size=5).classify("stub", texts)))

    assert (caught.value.index, caught.value.item_code) == (17, "empty_input")
    assert blocked.value.index == 17
    assert str(blocked.value).startswith("item 17 of the list: ")
    kept = client.in_parts(size=5).classify("stub", texts, on_error="continue")
    failed = [place async for place in _failed(kept)]
    assert failed == [(17, "empty_input")]


async def _failed(results: AsyncIterator[Labels]) -> AsyncIterator[tuple[int, str]]:
    place = 0
    async for result in results:
        if result.error is not None:
            yield place, result.error.code
        place += 1


async def test_one_text_is_no_list(client: AsyncSluicegate) -> None:
    with pytest.raises(TypeError, match="give a list of texts"):
        await anext(client.in_parts().embed("stub", "one text"))


async def test_a_client_over_its_limit_waits_and_succeeds_where_its_time_allows(
    tmp_path: Path, valkey: str, stub: StubBackend
) -> None:
    async with (
        running_worker(tmp_path, valkey, [stub], rules=(_SOON, _LATE)) as limited,
        AsyncSluicegate(url(limited), key=KEY) as client,
    ):
        calls = (client.infer("stub", [n]) for n in range(5))
        answers = await asyncio.gather(*calls)
        with pytest.raises(RateLimited) as caught:
            await client.infer("stub", [5])

    assert [answer.results[0]["echo"] for answer in answers] == list(range(5))
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 30.0
