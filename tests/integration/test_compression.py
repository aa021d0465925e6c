"""Bodies travel compressed both ways at a real worker, by each entry point."""

import gzip
from collections.abc import AsyncIterator, Mapping

import msgspec
import pytest

from sluicegate.gateway.api.content_coding import SMALLEST
from testing.raw_http import Response, post
from testing.stub_backend import StubBackend
from testing.valkey import Valkey
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = pytest.mark.anyio
GZIP = {"accept-encoding": "gzip"}
TEXTS = [f"text {number}" for number in range(600)]


@pytest.fixture(scope="module")
async def worker(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[RunningWorker]:
    # Of its own: what other tests published would be its configuration.
    with Valkey() as server:
        folder, request = tmp_path_factory.mktemp("worker"), {"max_body_bytes": 100_000}
        async with (
            StubBackend() as stub,
            running_worker(folder, server.url, [stub], request=request) as one,
        ):
            yield one


async def ask(
    worker: RunningWorker, body: bytes, headers: Mapping[str, str], *, in_parts: bool = False
) -> Response:
    request = post("/v1/classify", body, headers=headers)
    async with worker.connect() as connection:
        # In parts it is read by the application, in one by the fast path.
        await connection.send(*([request[:50], request[50:]] if in_parts else [request]))
        return await connection.response()


@pytest.mark.parametrize("texts", [TEXTS, ["long " * 6_000]], ids=["many", "one"])
@pytest.mark.parametrize("in_parts", [False, True])
async def test_a_large_answer_is_compressed_for_who_accepts_it(
    worker: RunningWorker,
    in_parts: bool,  # noqa: FBT001 - a parameter of the test
    texts: list[str],
) -> None:
    body = classify(*texts)
    for _ in range(3):  # computed, from memory, and again
        plain = await ask(worker, body, {}, in_parts=in_parts)
        packed = await ask(worker, body, GZIP, in_parts=in_parts)

        assert len(plain.body) > SMALLEST
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
        assert len(packed.body) < len(plain.body) / 5
        results = msgspec.json.decode(gzip.decompress(packed.body))["results"]
        assert results == plain.json()["results"]


async def test_a_small_answer_is_not_compressed(worker: RunningWorker) -> None:
    found = await ask(worker, classify("a"), GZIP)

    assert not {"content-encoding", "vary"} & found.headers.keys()


async def test_a_compressed_request_is_that_of_its_text(worker: RunningWorker) -> None:
    plain = await ask(worker, classify("a", "b"), {})
    named = {"content-encoding": "gzip", "idempotency-key": "packed"}
    bodies = [gzip.compress(classify("a", "b"), level) for level in (1, 9)]
    first, second = [await ask(worker, body, named) for body in bodies]

    assert first.json()["results"] == second.json()["results"] == plain.json()["results"]
    assert second.headers["idempotency-replayed"] == "true"


async def test_a_replay_is_inflated_for_who_does_not_accept_it(worker: RunningWorker) -> None:
    key = {"idempotency-key": "first packed"[:5] + "-packed"}
    packed = await ask(worker, classify(*TEXTS), key | GZIP)
    same = await ask(worker, classify(*TEXTS), key | GZIP)
    plain = await ask(worker, classify(*TEXTS), key)

    assert (packed.headers["content-encoding"], same.body) == ("gzip", packed.body)
    assert same.headers["content-encoding"] == "gzip"
    assert plain.headers["idempotency-replayed"] == "true"
    assert plain.body == gzip.decompress(packed.body)


@pytest.mark.parametrize(
    ("body", "coding", "status", "code"),
    [
        (gzip.compress(bytes(50_000_000), 1), "gzip", 413, "payload_too_large"),
        (b"no gzip", "gzip", 400, "invalid_request"),
        (b"x", "br", 415, "unsupported_content_encoding"),
        (gzip.compress(b"{}"), "gzip", 400, "invalid_request"),
    ],
    ids=["bomb", "no gzip", "another coding", "no fields"],  # gzip holds the time
)
async def test_a_body_that_is_no_request_is_refused(
    worker: RunningWorker, body: bytes, coding: str, status: int, code: str
) -> None:
    found = await ask(worker, body, {"content-encoding": coding})

    assert (found.status, found.json()["code"]) == (status, code)
    assert (found.headers.get("accept-encoding") == "gzip, deflate, zstd") is (status == 415)


async def test_nothing_is_inflated_for_strangers(worker: RunningWorker) -> None:
    found = await ask(
        worker,
        b"no gzip",
        {"content-encoding": "gzip", "authorization": "Bearer sk-nobody-has-this"},
    )

    assert found.status == 401
