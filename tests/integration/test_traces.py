"""Traces of a worker's hits and misses in collectors that work, and in those that do not."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status as StatusCode

from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.types import Rule
from sluicegate.wire.protocol import Call
from testing.ports import free_port
from testing.raw_http import Response, post
from testing.stub_backend import Reply, StubBackend, answer, refuse
from testing.waiting import eventually, until
from tests.support.otlp_sink import HttpSink
from tests.support.tracing import GrpcSink, Sink
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
_SPAN = "00f067aa0ba902b7"
_STEPS = {
    "POST /v1/classify",
    "admission",
    "cache lookup",
    "coalescing",
    "dispatch",
    "claim",
    "POST /v1/call",
}


@pytest.fixture(params=["http", "grpc"])
def sink(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    if request.param == "grpc":
        pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")
    running: Sink = HttpSink() if request.param == "http" else GrpcSink()
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    yield running
    running.stop()


@asynccontextmanager
async def workers(
    folder: Path, url: str, stub: StubBackend, *names: str, rules: tuple[Rule, ...] = ()
) -> AsyncIterator[list[RunningWorker]]:
    redis = connect(url, timeout=60.0)
    await redis.flushall()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(redis.aclose)
        found = []
        for name in names:
            (folder / name).mkdir()
            cache = {"redis_timeout": 5.0, "lease": 60.0}
            running = running_worker(folder / name, url, [stub], rules=rules, cache=cache)
            found.append(await stack.enter_async_context(running))
        yield found


async def ask(
    worker: RunningWorker, number: int, *, flags: str = "01", state: str = ""
) -> Response:
    headers = {"traceparent": f"00-{number:032x}-{_SPAN}-{flags}", "x-request-timeout": "60"}
    if state:
        headers["tracestate"] = state
    async with worker.connect() as connection:
        await connection.send(post("/v1/classify", classify("a"), headers=headers))
        return await connection.response()


def spans_of(sink: Sink, number: int) -> list[Span]:
    return [span for span in sink.spans if int.from_bytes(span.trace_id, "big") == number]


async def trace(sink: Sink, number: int) -> dict[str, list[Span]]:
    """Return the spans of a trace by their names, once that of the request is there."""

    def is_complete() -> bool:
        return any(span.name == "POST /v1/classify" for span in spans_of(sink, number))

    await until(is_complete)
    found: dict[str, list[Span]] = {}
    for span in spans_of(sink, number):
        found.setdefault(span.name, []).append(span)
    (root,) = found["POST /v1/classify"]
    assert root.parent_span_id.hex() == _SPAN
    known = {span.span_id for span in spans_of(sink, number)}
    assert all(s.parent_span_id in known for s in spans_of(sink, number) if s is not root)
    return found


def value(span: Span, name: str) -> object:
    (found,) = [each.value for each in span.attributes if each.key == name]
    return getattr(found, str(found.WhichOneof("value")))


def names(found: dict[str, list[Span]]) -> list[str]:
    return sorted(name for name, spans in found.items() for _ in spans)


async def test_a_miss_a_redis_hit_and_a_memory_hit_leave_complete_traces(
    tmp_path: Path, valkey: str, sink: Sink
) -> None:
    async with (
        StubBackend() as stub,
        workers(tmp_path, valkey, stub, "one", "two") as (one, two),
    ):
        await ask(one, 1, state="a=1")
        miss = await trace(sink, 1)
        redis_hit: dict[str, list[Span]] = {}
        numbers = itertools.count(10)

        async def is_redis_hit() -> bool:  # once the answer is in Redis
            nonlocal redis_hit
            number = next(numbers)  # spans of a miss may come late
            response = await ask(two, number)
            redis_hit = await trace(sink, number)
            return bool(response.json()["usage"]["hit"])

        await eventually(is_redis_hit)
        sink.spans.clear()
        hits = []
        for number in (3, 4, 5):  # the first is not replayed yet
            response = await ask(one, number)
            hits.append(await trace(sink, number))
            (root,) = hits[-1]["POST /v1/classify"]
            assert value(root, "sluicegate.request_id") == response.headers["x-request-id"]

    assert set(miss) == _STEPS
    (item,) = stub.calls[0].items
    (call,) = miss["POST /v1/call"]
    assert item.traceparent == f"00-{1:032x}-{call.span_id.hex()}-01"
    assert item.tracestate == "a=1"
    assert set(redis_hit) == {"POST /v1/classify", "admission", "cache lookup"}
    assert value(redis_hit["cache lookup"][-1], "sluicegate.cache.tier") == "redis"
    for hit in hits:
        assert names(hit) == ["POST /v1/classify", "admission", "cache lookup"]
        assert value(hit["cache lookup"][0], "sluicegate.cache.tier") == "memory"


@pytest.mark.parametrize("sink", ["http"], indirect=True)
async def test_limits_every_attempt_and_a_wait_for_another_worker_have_spans(
    tmp_path: Path, valkey: str, sink: Sink
) -> None:
    calls, may_answer = 0, asyncio.Event()

    async def second_answers(stub: StubBackend, call: Call, reply: Reply) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            reply.cut()
            return
        await may_answer.wait()
        await answer(stub, call, reply)

    rule = Rule(name="tokens", unit="tokens", capacity=100_000, window=60.0)
    async with (
        StubBackend(behaviour=second_answers) as stub,
        workers(tmp_path, valkey, stub, "one", "two", rules=(rule,)) as (one, two),
    ):
        asked = [asyncio.create_task(ask(one, 1))]
        await until(lambda: calls == 2)
        asked.append(asyncio.create_task(ask(two, 2)))
        await until(lambda: any(span.name == "claim" for span in spans_of(sink, 2)))
        may_answer.set()
        assert [response.status for response in await asyncio.gather(*asked)] == [200, 200]
        retried, waited = await trace(sink, 1), await trace(sink, 2)

    assert set(retried) == _STEPS | {"limits of work"}
    cut, answered = sorted(retried["POST /v1/call"], key=lambda span: span.start_time_unix_nano)
    assert value(cut, "error.type") == "unreachable"
    assert cut.status.code == StatusCode.STATUS_CODE_ERROR
    assert answered.status.code == StatusCode.STATUS_CODE_UNSET
    assert "POST /v1/call" not in waited
    assert len(waited["wait for other workers"]) == 1
    assert value(waited["claim"][0], "sluicegate.items.theirs") == 1


async def test_what_is_not_sampled_leaves_nothing_but_a_failure(
    tmp_path: Path, valkey: str, sink: Sink
) -> None:
    async with StubBackend() as stub, workers(tmp_path, valkey, stub, "one") as (one,):
        assert (await ask(one, 1, flags="00")).status == 200
        assert (await ask(one, 1, flags="00")).status == 200
        (item,) = stub.calls[0].items
        stub.behaviour = refuse("overloaded")
        async with one.connect() as connection:
            body = classify("b")
            headers = {"traceparent": f"00-{2:032x}-{_SPAN}-00"}
            await connection.send(post("/v1/classify", body, headers=headers))
            failed = await connection.response()
        found = await trace(sink, 2)

    assert item.traceparent == f"00-{1:032x}-{_SPAN}-00"
    assert failed.status >= 500
    assert names(found) == ["POST /v1/classify"]
    assert value(found["POST /v1/classify"][0], "http.response.status_code") == failed.status
    assert {span.trace_id for span in sink.spans} == {(2).to_bytes(16, "big")}


@pytest.mark.parametrize("trouble", ["dead", "slow", "refusing"])
async def test_a_collector_in_trouble_costs_no_answer_and_is_counted(
    tmp_path: Path, valkey: str, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    collector = HttpSink(status=400)
    if trouble == "slow":
        collector.answers.clear()
    endpoint = collector.environment["OTEL_EXPORTER_OTLP_ENDPOINT"]
    if trouble == "dead":
        endpoint = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "50")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    async with StubBackend() as stub, workers(tmp_path, valkey, stub, "one") as (one,):
        statuses = {(await ask(one, number)).status for number in range(1, 20)}
        await until(partial(is_counted, one))
    collector.stop()

    assert statuses == {200}


def is_counted(worker: RunningWorker) -> bool:
    lost = r'^sluicegate_trace_spans_total\{outcome="(?:dropped|failed)"\} ([0-9.]+)'
    found = re.findall(lost, worker.metrics(), re.MULTILINE)
    return sum(map(float, found)) > 0
