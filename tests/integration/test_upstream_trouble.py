"""What becomes of a batch when the server that runs the model fails, in each way it can."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sluicegate.backends.errors import (
    BackendError,
    ModelFailed,
    ModelProblem,
    Overloaded,
    UpstreamFailed,
    UpstreamUnavailable,
)
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.padded_batch import pad
from sluicegate.backends.executors.upstream import UpstreamExecutor
from sluicegate.backends.open_inference import client
from sluicegate.backends.open_inference.address import RemoteModelServer
from sluicegate.backends.open_inference.client import UpstreamClient
from sluicegate.backends.types import FloatArray, OutputKind
from sluicegate.wire.protocol import Done, Failed, Task
from testing.model_repository import DIMENSIONS, toy_graph
from testing.waiting import WAIT_LIMIT, until
from tests.integration.test_foreign_upstream import write_remote
from tests.support.backend_calls import running_backend
from tests.support.inference_server import InferenceServer, Outputs, inference_server

pytestmark = pytest.mark.anyio
Spoil = Callable[[Outputs], Outputs]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a healthy server may answer late."""
    monkeypatch.setattr(client, "_READY_TIMEOUT", WAIT_LIMIT)
    monkeypatch.setattr(client, "_STATUS_TIMEOUT", WAIT_LIMIT)


@pytest.fixture
def server() -> Iterator[InferenceServer]:
    with inference_server(toy_graph()) as running:
        yield running


def open_upstream(server: InferenceServer, *, token: str = "", **changes: Any) -> UpstreamExecutor:
    upstream = RemoteModelServer(
        url=server.url, model="remote", **{"timeout": WAIT_LIMIT, **changes}
    )
    outputs = {OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"}
    source = GraphSource(path=Path(), outputs=outputs, dimensions=DIMENSIONS, max_tokens=32)
    return UpstreamExecutor(source, upstream, token=token)


def ask(executor: UpstreamExecutor, *, time_left: float = WAIT_LIMIT) -> FloatArray:
    ids = np.array([2, 4, 3], dtype=np.int32)
    return executor.run_within(time_left, pad([ids], OutputKind.POOLED))


@pytest.mark.parametrize(
    ("status", "ready", "kind"),
    [
        (400, True, UpstreamFailed),
        (413, True, UpstreamFailed),
        (500, True, UpstreamFailed),
        (400, False, UpstreamUnavailable),
        (500, False, UpstreamUnavailable),
        (401, True, UpstreamUnavailable),
        (404, True, UpstreamUnavailable),
        (502, True, UpstreamUnavailable),
        (503, True, Overloaded),
        (503, False, UpstreamUnavailable),
        (429, True, Overloaded),
    ],
)
def test_each_status_is_an_error_that_another_backend_may_not_meet(
    server: InferenceServer, status: int, *, ready: bool, kind: type[BackendError]
) -> None:
    executor = open_upstream(server)
    server.status, server.ready = status, ready

    with pytest.raises(kind, match=f"answers {status}") as raised:
        ask(executor)

    assert raised.value.retryable


def test_a_busy_server_says_when_to_come_back(server: InferenceServer) -> None:
    executor = open_upstream(server)
    server.status, server.headers = 429, {"Retry-After": "7"}

    with pytest.raises(Overloaded) as raised:
        ask(executor)

    assert raised.value.retry_after == 7


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda outputs: {n: v[:, :-1] for n, v in outputs.items()}, r"\[1, 7\]"),
        (lambda outputs: {n: v.astype(np.int32) for n, v in outputs.items()}, "is INT32 of"),
        (lambda outputs: {"other": outputs["pooled"]}, "lacks the output `pooled`"),
    ],
)
@pytest.mark.parametrize("binary", [True, False])
def test_outputs_of_other_shapes_types_or_names_are_no_answer(
    *, spoil: Spoil, message: str, binary: bool
) -> None:
    with inference_server(toy_graph(), binary=binary) as server:
        executor = open_upstream(server)
        server.spoil = spoil

        with pytest.raises(UpstreamUnavailable, match=message):
            ask(executor)


@pytest.mark.parametrize("missing", [1, 20, 200])
def test_a_response_that_is_cut_off_is_no_answer(server: InferenceServer, missing: int) -> None:
    executor = open_upstream(server)
    server.missing = missing

    with pytest.raises(UpstreamUnavailable, match="IncompleteRead"):
        ask(executor)


@pytest.mark.parametrize("extra", ["Inference-Header-Content-Length", "Retry-After"])
def test_headers_that_are_no_numbers_are_not_believed(server: InferenceServer, extra: str) -> None:
    executor = open_upstream(server)
    server.status, server.headers = 503, {extra: "soon"}

    with pytest.raises(Overloaded):
        ask(executor)


def test_answers_of_another_version_are_no_answers(server: InferenceServer) -> None:
    """Before anybody has looked what is new, they would be told as those of the old revision."""
    executor = open_upstream(server)
    server.answers_as = "2"

    with pytest.raises(UpstreamUnavailable, match="version 1 to 2"):
        ask(executor)


def test_the_time_that_is_left_is_that_of_the_run(server: InferenceServer) -> None:
    executor = open_upstream(server, timeout=30)

    ask(executor, time_left=20.0)
    told = server.runs[-1]["parameters"]["timeout"]
    server.gate.clear()
    with pytest.raises(UpstreamUnavailable, match="TimeoutError"):
        ask(executor, time_left=0.2)

    assert told == 20_000_000


async def test_items_are_answered_in_their_time_whatever_the_server_does(
    tmp_path: Path, server: InferenceServer
) -> None:
    async with running_backend(write_remote(tmp_path / "models", server)) as backend:
        server.gate.clear()

        (failed,) = await backend.ask("mood", Task.CLASSIFY, ["good"], remaining=0.3)

        assert isinstance(failed, Failed)
        assert failed.code in {"deadline_exceeded", "upstream_unavailable"}


async def test_a_row_that_is_not_finite_fails_alone(
    tmp_path: Path, server: InferenceServer
) -> None:
    def spoil(outputs: Outputs) -> Outputs:
        return {name: np.concatenate([v[:1] * np.nan, v[1:]]) for name, v in outputs.items()}

    async with running_backend(write_remote(tmp_path / "models", server)) as backend:
        server.spoil = spoil

        found = await backend.ask("mood", Task.CLASSIFY, ["good film", "bad money"])

        assert [isinstance(each, Done) for each in found].count(True) == 1


async def test_a_server_that_fails_what_it_could_do_costs_no_lane_and_few_calls(
    tmp_path: Path, server: InferenceServer
) -> None:
    """A graph of ours that did so would be broken for good; a server is mended."""
    words = ["good", "bad", "film", "money", "card", "paris", "text", "this"]
    async with running_backend(write_remote(tmp_path / "models", server)) as backend:
        await backend.answer("mood", Task.CLASSIFY, "the good film")
        server.status = 500

        found = await backend.ask("mood", Task.CLASSIFY, [f"about {word}" for word in words])

        assert {each.code for each in found if isinstance(each, Failed)} == {"upstream_unavailable"}
        assert backend.engine.failures() == []
        server.status = None
        await backend.answer("mood", Task.CLASSIFY, "about money")


async def test_calls_are_refused_at_once_while_the_server_is_known_to_be_away(
    tmp_path: Path, server: InferenceServer
) -> None:
    async with running_backend(write_remote(tmp_path / "models", server)) as backend:
        server.healthy = False
        await backend.repository.check_upstreams()
        runs = len(server.runs)

        exchange = await backend.exchange(backend.call("mood", Task.CLASSIFY, ["good"])).run()

        assert exchange.status == 503
        assert b"not_ready" in exchange.body
        assert len(server.runs) == runs


async def test_a_server_that_dies_under_load_and_returns_gives_no_wrong_answer_and_no_hang(
    tmp_path: Path,
) -> None:
    words = ["good", "bad", "film", "money", "card", "paris", "text", "this"]
    texts = [f"{one} {other}" for one in words for other in words]
    with inference_server(toy_graph()) as server:
        port = server.server_port
        async with running_backend(
            write_remote(tmp_path / "models", server), row_cache_bytes=0
        ) as backend:
            before = await backend.ask("mood", Task.CLASSIFY, texts)
            server.gate.clear()
            asking = asyncio.create_task(backend.ask("mood", Task.CLASSIFY, texts))
            await until(lambda: server.most_at_once == 4, what="it works on four batches")
            server.shutdown()
            server.server_close()
            server.cut()
            during = await asking
            with inference_server(toy_graph(), port=port):
                await backend.repository.check_upstreams()
                after = await backend.ask("mood", Task.CLASSIFY, texts)

    assert all(isinstance(each, Failed) and each.retryable for each in during)
    assert scores(after) == pytest.approx(scores(before), abs=1e-5)


async def test_a_model_that_hangs_in_a_server_that_says_it_is_ready_is_found_out(
    tmp_path: Path, server: InferenceServer
) -> None:
    async with running_backend(write_remote(tmp_path / "models", server)) as backend:
        server.gate.clear()
        (failed,) = await backend.ask("mood", Task.CLASSIFY, ["good"], remaining=0.3)
        assert isinstance(failed, Failed)

        await backend.repository.check_upstreams()
        hung = backend.engine.state()
        server.gate.set()
        await backend.repository.check_upstreams()

        assert not hung.ready
        assert backend.engine.state().ready
        await backend.answer("mood", Task.CLASSIFY, "good")


def scores(found: list[Done | Failed]) -> list[float]:
    """Return how positive items are, in their order."""
    assert all(isinstance(each, Done) for each in found)
    labels = [msgspec.json.decode(e.result)["labels"] for e in found if isinstance(e, Done)]
    return [x["score"] for each in labels for x in each if x["label"] == "positive"]


async def test_batches_have_no_more_rows_than_the_server_declares(
    tmp_path: Path, server: InferenceServer
) -> None:
    server.most_rows = 3
    words = ["good", "bad", "film", "money", "card", "paris", "text"]
    async with running_backend(write_remote(tmp_path / "models", server)) as backend:
        found = await backend.ask("mood", Task.CLASSIFY, [f"about {word}" for word in words])

        assert all(isinstance(each, Done) for each in found)
    assert max(run["inputs"][0]["shape"][0] for run in server.runs) == 3


async def test_a_server_of_single_rows_gets_single_rows(
    tmp_path: Path, server: InferenceServer
) -> None:
    server.most_rows = 1
    async with running_backend(write_remote(tmp_path / "models", server)) as backend:
        found = await backend.ask("mood", Task.CLASSIFY, ["good", "bad film", "about money"])

        assert all(isinstance(each, Done) for each in found)


def tensors(*shapes: list[int], datatype: str = "INT64") -> list[dict[str, Any]]:
    names = ("input_ids", "attention_mask", "token_type_ids")
    return [
        {"name": name, "datatype": datatype, "shape": shape}
        for name, shape in zip(names, shapes, strict=False)
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": tensors([-1, 128])}, r"\[-1, 128\]"),
        ({"inputs": tensors([8, -1])}, r"\[8\] rows"),
        ({"inputs": tensors([-1, -1], datatype="FP32")}, "input `input_ids` of type FP32"),
        ({"inputs": []}, "no input `input_ids`"),
        (
            {"outputs": [{"name": "pooled", "datatype": "FP32", "shape": [-1, 9]}]},
            "output `pooled` is 9 wide, not `dimensions: 8`",
        ),
        ({"outputs": "many"}, "Open Inference Protocol"),
    ],
)
def test_a_model_that_is_no_such_encoder_is_refused_when_it_is_loaded(
    server: InferenceServer, changes: dict[str, Any], message: str
) -> None:
    server.changes = changes

    with pytest.raises(ModelProblem, match=message):
        open_upstream(server)


def test_a_token_is_sent_with_every_request(server: InferenceServer) -> None:
    server.token = "secret"

    ask(open_upstream(server, token="secret"))
    with pytest.raises(ModelProblem, match="answers /v2 with 401"):
        open_upstream(server)


async def test_a_model_that_could_not_be_loaded_is_tried_again(
    tmp_path: Path, server: InferenceServer
) -> None:
    """The server was ready, and too busy for the trial."""
    server.status = 503
    async with running_backend(write_remote(tmp_path / "models", server)) as backend:
        assert not backend.engine.state().ready
        server.status = None

        await backend.repository.check_upstreams()
        too_soon = backend.engine.state().ready
        backend.repository.retry_interval = 0.0
        await backend.repository.check_upstreams()

        assert not too_soon
        assert backend.engine.state().ready


def test_only_a_row_to_blame_is_a_failed_model(server: InferenceServer) -> None:
    executor = open_upstream(server)
    ids = np.array([2, 5_000, 3], dtype=np.int32)

    with pytest.raises(ModelFailed):
        executor.run(pad([ids], OutputKind.POOLED))


def test_connections_that_no_call_uses_are_probed_by_the_kernel(server: InferenceServer) -> None:
    client = UpstreamClient(RemoteModelServer(url=server.url, model="remote"))

    client.metadata()
    (kept,) = client._idle

    assert kept.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert kept.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
    assert kept.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
    client.close()
