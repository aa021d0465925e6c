"""A model that another server runs: the backend answers as with the graph itself."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sluicegate.backends.errors import ModelFailed, ModelProblem, UpstreamUnavailable
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.padded_batch import pad
from sluicegate.backends.executors.upstream import UpstreamExecutor
from sluicegate.backends.open_inference.address import RemoteModelServer
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.types import FloatArray, OutputKind
from sluicegate.wire.protocol import Done, Failed, Task
from testing.model_repository import (
    DIMENSIONS,
    make_tokenizer,
    toy_graph,
    write_encoder,
    write_head,
    write_model,
)
from testing.waiting import WAIT_LIMIT
from tests.support.backend_calls import running_backend
from tests.support.inference_server import InferenceServer, Outputs, inference_server

pytestmark = pytest.mark.anyio
OUTPUTS = {OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"}


@pytest.fixture
def server() -> Iterator[InferenceServer]:
    with inference_server(toy_graph()) as running:
        yield running


def write_remote(root: Path, server: InferenceServer, **changes: object) -> Path:
    manifest = {
        "kind": "encoder",
        "upstream": {"url": server.url, "model": "remote", "timeout": WAIT_LIMIT},
        "tokenizer": "tokenizer.json",
        "max_tokens": 32,
        "dimensions": DIMENSIONS,
        "tasks": ["embed", "rerank"],
        "outputs": {"pooled": "pooled", "tokens": "tokens"},
    }
    folder = write_model(root, "tiny", manifest | changes)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    write_head(root, "mood", ["negative", "positive"])
    return root


def open_upstream(server: InferenceServer, **changes: object) -> UpstreamExecutor:
    upstream = RemoteModelServer(url=server.url, model="remote", **changes)  # type: ignore[arg-type]
    source = GraphSource(path=Path(), outputs=OUTPUTS, dimensions=DIMENSIONS, max_tokens=32)
    return UpstreamExecutor(source, upstream)


def ask(executor: UpstreamExecutor, word: int = 4) -> FloatArray:
    ids = np.array([2, word, 3], dtype=np.int32)
    return executor.run(pad([ids], OutputKind.POOLED))


async def test_answers_equal_those_of_the_graph_itself(
    tmp_path: Path, server: InferenceServer
) -> None:
    local = tmp_path / "local"
    write_encoder(local, real=True)
    write_head(local, "mood", ["negative", "positive"])
    text = "the film is good"

    async with running_backend(local) as backend:
        expected = await backend.answer("mood", Task.CLASSIFY, text)
    async with running_backend(write_remote(tmp_path / "remote", server)) as backend:
        found = await backend.answer("mood", Task.CLASSIFY, text)

        assert backend.engine.state().provider == "OpenInferenceExecutionProvider"
    scores = [{x["label"]: x["score"] for x in a["labels"]} for a in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


async def test_a_server_that_runs_our_graphs_is_a_backend_of_the_same_revision(
    tmp_path: Path,
) -> None:
    """Requests that began elsewhere may end there, and one's cached answers are the other's."""
    models = tmp_path / "models"
    write_encoder(models, real=True)
    write_head(models, "mood", ["negative", "positive"])
    async with running_backend(models) as backend:
        expected = await backend.answer("mood", Task.CLASSIFY, "the film is good")
        revision = backend.info("mood").revision

    with inference_server(toy_graph(), name="tiny") as server:
        async with running_backend(
            models, provider="open_inference", upstream_url=server.url
        ) as backend:
            found = await backend.answer("mood", Task.CLASSIFY, "the film is good")

            assert backend.info("mood").revision == revision
            assert backend.engine.state().provider == "OpenInferenceExecutionProvider"
    assert server.runs
    assert [x["label"] for x in found["labels"]] == [x["label"] for x in expected["labels"]]


@pytest.mark.parametrize("when", ["at first", "later"])
async def test_a_server_that_runs_another_graph_than_ours_does_not_pass_for_it(
    tmp_path: Path, when: str
) -> None:
    def spoil(outputs: Outputs) -> Outputs:
        return {name: values * 1.01 for name, values in outputs.items()}

    models = tmp_path / "models"
    write_encoder(models, real=True)
    with inference_server(toy_graph(), name="tiny") as server:
        if when == "at first":
            server.spoil = spoil
        async with running_backend(
            models, provider="open_inference", upstream_url=server.url
        ) as backend:
            if when == "later":
                assert backend.engine.state().ready
                server.spoil, server.changes = spoil, {"platform": "other"}
                await backend.repository.check_upstreams()

            assert not backend.engine.state().ready
            (missing,) = (line for line in backend.engine.state().missing if "tiny" in line)
            assert "by 0.01 of" in missing


async def test_a_token_is_told_to_the_server_it_is_for_alone(
    tmp_path: Path, server: InferenceServer
) -> None:
    server.token = "secret"
    named = write_remote(tmp_path / "named", server)
    told = write_remote(tmp_path / "told", server, upstream={"model": "remote"})
    nobody = "http://127.0.0.1:9"

    async with running_backend(told, upstream_url=server.url, upstream_token="secret") as backend:
        assert backend.engine.state().ready
    async with running_backend(named, upstream_url=nobody, upstream_token="secret") as backend:
        assert not backend.engine.state().ready


async def test_where_the_server_is_changes_no_revision(tmp_path: Path) -> None:
    revisions = set()
    for region in ("eu", "us"):
        with inference_server(toy_graph()) as server:
            models = write_remote(tmp_path / region, server, upstream={"model": "remote"})
            async with running_backend(models, upstream_url=server.url) as backend:
                revisions.add(backend.info("mood").revision)

    assert len(revisions) == 1


async def test_a_server_that_goes_and_returns_costs_no_lane(
    tmp_path: Path, server: InferenceServer
) -> None:
    async with running_backend(write_remote(tmp_path / "models", server)) as backend:
        await backend.answer("mood", Task.CLASSIFY, "good")
        server.status, server.ready = 503, False

        (failed,) = await backend.ask("mood", Task.CLASSIFY, ["bad film"])
        await backend.repository.check_upstreams()
        state = backend.engine.state()

        assert isinstance(failed, Failed)
        assert (failed.code, failed.retryable) == ("upstream_unavailable", True)
        assert not state.ready
        assert any("is not ready" in line for line in state.missing)
        server.status, server.ready = None, True
        await backend.repository.check_upstreams()
        assert backend.engine.state().ready
        (answered,) = await backend.ask("mood", Task.CLASSIFY, ["bad film"])
        assert isinstance(answered, Done)


async def test_another_version_there_is_another_revision_here(
    tmp_path: Path, server: InferenceServer
) -> None:
    async with running_backend(write_remote(tmp_path / "models", server)) as backend:
        before = backend.info("mood").variant
        server.versions = ["2"]

        await backend.repository.check_upstreams()

        assert backend.info("mood").revision != before.revision
        assert backend.info("mood").replaced == (before,)


async def test_a_server_that_comes_late_is_taken_up(
    tmp_path: Path, server: InferenceServer
) -> None:
    server.ready = False
    async with running_backend(write_remote(tmp_path / "models", server)) as backend:
        assert not backend.engine.state().ready
        server.ready = True

        await backend.repository.check_upstreams()

        assert backend.engine.state().ready


def test_connections_are_kept_and_closed_ones_replaced(server: InferenceServer) -> None:
    executor = open_upstream(server)
    for _ in range(5):
        ask(executor)
    opened = server.connections

    server.cut()

    assert opened == 1
    assert np.array_equal(ask(executor), ask(executor))
    assert server.connections == 2


async def test_runs_are_in_flight_side_by_side(server: InferenceServer) -> None:
    executor = open_upstream(server, runs=3)
    server.most_at_once = 0
    server.gate.clear()

    runs = [asyncio.create_task(asyncio.to_thread(ask, executor)) for _ in range(3)]
    opener = threading.Timer(0.3, server.gate.set)
    opener.start()
    await asyncio.gather(*runs)
    opener.join()

    assert server.most_at_once == 3


def test_a_server_that_hangs_is_given_up_in_time(server: InferenceServer) -> None:
    executor = open_upstream(server, timeout=0.5)
    server.gate.clear()

    with pytest.raises(UpstreamUnavailable, match="TimeoutError"):
        ask(executor)


def test_a_batch_it_cannot_compute_is_told_from_a_model_that_is_gone(
    server: InferenceServer,
) -> None:
    executor = open_upstream(server)

    with pytest.raises(ModelFailed):
        ask(executor, word=5_000)
    server.ready = False
    with pytest.raises(UpstreamUnavailable):
        ask(executor, word=5_000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"upstream": {"model": "m"}}, "`SLUICEGATE_BACKEND_UPSTREAM_URL`"),
        ({"graph": "model.onnx"}, "`graph`"),
        ({"upstream": {"url": "ftp://x", "model": "m"}}, "url"),
    ],
)
def test_what_a_manifest_says_wrongly_is_named(
    tmp_path: Path, server: InferenceServer, changes: dict[str, object], message: str
) -> None:
    catalogue = read_catalogue(write_remote(tmp_path / "models", server, **changes))

    assert message in catalogue.problems["tiny"]


def test_an_output_the_server_has_not_is_named(server: InferenceServer) -> None:
    upstream = RemoteModelServer(url=server.url, model="remote")
    outputs = {OutputKind.POOLED: "cls"}

    with pytest.raises(ModelProblem, match="no output `cls`; it has pooled, tokens"):
        UpstreamExecutor(GraphSource(path=Path(), outputs=outputs, dimensions=8), upstream)
