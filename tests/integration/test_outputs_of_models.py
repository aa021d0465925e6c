"""A backend answers several outputs of a text with one run of the model."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sluicegate.wire.protocol import (
    Done,
    EmbedItem,
    EmbedOutput,
    EmbedParameters,
    Failed,
    RerankParameters,
    Task,
)
from testing.raw_http import post
from testing.valkey import Valkey
from tests.parity.library_fixtures import OUTPUTS, unpack
from tests.parity.library_served import import_folder
from tests.support.backend_calls import Backend, running_backend
from tests.support.listening_backend import listening_backend
from tests.support.worker import running_worker

pytestmark = pytest.mark.anyio
SEVERAL, COLBERT, SPLADE = "joined-xlm-roberta", "late-bert", "splade-bert"
PROMPTED, PROMPT = "prompted", "Is this a city? "
TEXT, OTHER = "Paris is a big city, and I like it.", "The card has not arrived yet."


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    for name in (SEVERAL, COLBERT, SPLADE):
        source = unpack(name, folder / "sources", fixtures=OUTPUTS)
        assert import_folder(source, folder / "models") is None
    prompted = folder / "sources" / PROMPTED
    shutil.copytree(folder / "sources" / SEVERAL, prompted)
    prompts = msgspec.json.encode({"prompts": {"query": PROMPT}})
    (prompted / "config_sentence_transformers.json").write_bytes(prompts)
    assert import_folder(prompted, folder / "models") is None
    return folder / "models"


@pytest.fixture
async def backend(models: Path) -> AsyncIterator[Backend]:
    async with running_backend(models, threads=1) as found:
        yield found


def item(output: EmbedOutput, text: str = TEXT, **fields: Any) -> EmbedItem:
    return EmbedItem(input=text, output=output, **fields)


async def done(backend: Backend, model: str, task: Task, items: list[Any], **given: Any) -> Any:
    outcomes = await backend.ask(model, task, items, **given)
    assert all(isinstance(each, Done) for each in outcomes), outcomes
    return outcomes


async def refusal(backend: Backend, model: str, asked: Any, **parameters: Any) -> Failed:
    (outcome,) = await backend.ask(
        model, Task.EMBED, [asked], parameters=EmbedParameters(**parameters)
    )
    assert isinstance(outcome, Failed), outcome
    return outcome


async def test_one_run_answers_every_output_of_a_text(backend: Backend) -> None:
    items = [TEXT, item("sparse"), item("multi_vector")]

    first = await done(backend, SEVERAL, Task.EMBED, items)
    again = await done(backend, SEVERAL, Task.EMBED, items)

    assert sum(outcome.rows for outcome in first) == 1
    assert sum(outcome.known for outcome in first) == 2
    assert [outcome.rows for outcome in again] == [0, 0, 0]
    names = [set(msgspec.json.decode(outcome.result)) for outcome in first]
    assert names == [{"embedding"}, {"sparse"}, {"multi_vector"}]


async def test_a_dense_vector_alone_is_cached_without_the_other_outputs(backend: Backend) -> None:
    cache = backend.engine.model_set.encoders[0].pipeline.rows.cache
    before = cache.size_bytes
    (alone,) = await done(backend, SEVERAL, Task.EMBED, [OTHER])
    small = cache.size_bytes - before

    (sparse,) = await done(backend, SEVERAL, Task.EMBED, [item("sparse", OTHER)])
    large = cache.size_bytes - before - small
    (again,) = await done(backend, SEVERAL, Task.EMBED, [OTHER])

    assert (alone.rows, sparse.rows, again.rows) == (1, 1, 0)
    assert small < large
    assert again.result == alone.result


async def test_the_outputs_of_a_model_are_named(backend: Backend) -> None:
    assert backend.info(SEVERAL).outputs == ("dense", "sparse", "multi_vector")
    assert backend.info(COLBERT).outputs == ("multi_vector",)
    assert backend.info(SPLADE).outputs == ("sparse",)


async def test_an_output_that_a_model_lacks_is_refused(backend: Backend) -> None:
    for model, asked in ((SPLADE, TEXT), (COLBERT, item("sparse"))):
        failed = await refusal(backend, model, asked)

        assert failed.code == "bad_output"
        assert f"`{'dense' if model is SPLADE else 'sparse'}`" in failed.detail


async def test_tokens_are_shown_on_request(backend: Backend) -> None:
    (sparse,) = await done(backend, SEVERAL, Task.EMBED, [item("sparse", tokens=True)])
    (vectors,) = await done(backend, COLBERT, Task.EMBED, [item("multi_vector", tokens=True)])

    found, late = (msgspec.json.decode(outcome.result) for outcome in (sparse, vectors))
    assert len(found["sparse_tokens"]) == len(found["sparse"]["indices"])
    assert late["multi_vector_tokens"][:2] == ["[CLS]", "[D] "]
    assert "." not in late["multi_vector_tokens"]


async def test_token_vectors_are_shortened_and_stay_of_length_one(backend: Backend) -> None:
    (outcome,) = await done(
        backend,
        COLBERT,
        Task.EMBED,
        [item("multi_vector")],
        parameters=EmbedParameters(dimensions=4),
    )

    vectors = np.array(msgspec.json.decode(outcome.result)["multi_vector"])
    assert vectors.shape[1] == 4
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    assert (await refusal(backend, COLBERT, item("multi_vector"), dimensions=17)).code == (
        "bad_dimensions"
    )


async def test_pooling_leaves_a_part_of_the_vectors(backend: Backend) -> None:
    whole, pooled = await done(
        backend,
        COLBERT,
        Task.EMBED,
        [item("multi_vector"), item("multi_vector", pool_factor=3)],
    )

    before, after = (msgspec.json.decode(o.result)["multi_vector"] for o in (whole, pooled))
    assert len(after) == 1 + (len(before) - 1) // 3
    assert after[0] == pytest.approx(before[0], abs=1e-6)


async def test_a_repeated_document_is_ranked_without_a_run(backend: Backend) -> None:
    await done(backend, COLBERT, Task.EMBED, [item("multi_vector"), item("multi_vector", OTHER)])

    ranked = await done(
        backend, COLBERT, Task.RERANK, [TEXT, OTHER], parameters=RerankParameters(query="a city")
    )
    query = await done(
        backend, COLBERT, Task.EMBED, [item("multi_vector", "a city", is_query=True)]
    )

    assert sum(outcome.rows for outcome in ranked) == 1  # the query
    scores = [msgspec.json.decode(outcome.result)["score"] for outcome in ranked]
    vectors = np.array(msgspec.json.decode(query[0].result)["multi_vector"])
    documents = await done(
        backend, COLBERT, Task.EMBED, [item("multi_vector"), item("multi_vector", OTHER)]
    )
    for score, document in zip(scores, documents, strict=True):
        found = np.array(msgspec.json.decode(document.result)["multi_vector"])
        assert score == pytest.approx((vectors @ found.T).max(axis=1).sum(), abs=1e-4)


async def test_scores_of_several_outputs_are_weighed(backend: Backend) -> None:
    query, weights = "Is it a big city?", {"dense": 0.5, "sparse": 0.25, "multi_vector": 2.0}
    ranked = await done(
        backend,
        SEVERAL,
        Task.RERANK,
        [TEXT, OTHER],
        parameters=RerankParameters(query=query, weights=weights),  # type: ignore[arg-type]
    )
    outputs: list[dict[str, Any]] = []
    for text in (query, TEXT, OTHER):
        items = [text, item("sparse", text), item("multi_vector", text)]
        found = await done(backend, SEVERAL, Task.EMBED, items)
        outputs.append(dict(kv for o in found for kv in msgspec.json.decode(o.result).items()))

    assert sum(outcome.rows for outcome in ranked) == 3
    for document, outcome in zip(outputs[1:], ranked, strict=True):
        dense = np.dot(outputs[0]["embedding"], document["embedding"])
        one, other = (
            dict(zip(each["sparse"]["indices"], each["sparse"]["values"], strict=True))
            for each in (outputs[0], document)
        )
        sparse = sum(weight * other.get(token, 0.0) for token, weight in one.items())
        vectors = np.array(outputs[0]["multi_vector"]) @ np.array(document["multi_vector"]).T
        expected = 0.5 * dense + 0.25 * sparse + 2.0 * vectors.max(axis=1).mean()
        assert msgspec.json.decode(outcome.result)["score"] == pytest.approx(expected, abs=1e-4)


async def test_a_sparse_model_ranks_by_common_words(backend: Backend) -> None:
    ranked = await done(
        backend, SPLADE, Task.RERANK, [TEXT], parameters=RerankParameters(query=OTHER)
    )
    pair = await done(backend, SPLADE, Task.EMBED, [item("sparse"), item("sparse", OTHER)])

    lines = [msgspec.json.decode(outcome.result)["sparse"] for outcome in pair]
    one, other = (dict(zip(each["indices"], each["values"], strict=True)) for each in lines)
    score = sum(weight * other.get(token, 0.0) for token, weight in one.items())
    assert msgspec.json.decode(ranked[0].result)["score"] == pytest.approx(score, rel=1e-5)


async def test_weights_of_outputs_that_a_model_lacks_are_refused(backend: Backend) -> None:
    asked = RerankParameters(query="a", weights={"dense": 1.0})

    (failed,) = await backend.ask(COLBERT, Task.RERANK, [TEXT], parameters=asked)

    assert isinstance(failed, Failed)
    assert failed.code == "bad_output"


async def test_a_named_prompt_is_put_before_each_output(backend: Backend) -> None:
    kinds: tuple[EmbedOutput, ...] = ("dense", "sparse", "multi_vector")
    named = EmbedParameters(prompt_name="query")

    found = await done(
        backend, PROMPTED, Task.EMBED, [item(kind) for kind in kinds], parameters=named
    )
    expected = await done(
        backend, SEVERAL, Task.EMBED, [item(kind, PROMPT + TEXT) for kind in kinds]
    )

    assert backend.info(PROMPTED).prompts == ("query", "document")
    assert [outcome.result for outcome in found] == [outcome.result for outcome in expected]


async def test_documents_are_ranked_with_the_prompts_of_their_kind(backend: Backend) -> None:
    weights: dict[EmbedOutput, float] = {"dense": 0.5, "sparse": 0.25, "multi_vector": 2.0}
    own, written = (RerankParameters(query=q, weights=weights) for q in ("a", f"{PROMPT}a"))

    found = await done(backend, PROMPTED, Task.RERANK, [TEXT], parameters=own)
    expected = await done(backend, SEVERAL, Task.RERANK, [TEXT], parameters=written)

    assert found[0].result == expected[0].result


async def test_a_prompt_that_a_checkpoint_lacks_is_refused(backend: Backend) -> None:
    for model, asked in ((COLBERT, item("multi_vector")), (SPLADE, item("sparse"))):
        assert (await refusal(backend, model, asked, prompt_name="query")).code == "bad_prompt"
    assert backend.info(COLBERT).prompts == ()


async def test_models_with_several_outputs_read_no_instruction(backend: Backend) -> None:
    asked = RerankParameters(query="a", instruction="b", weights={"dense": 1.0})

    (failed,) = await backend.ask(SEVERAL, Task.RERANK, [TEXT], parameters=asked)

    assert isinstance(failed, Failed)
    assert failed.code == "bad_instruction"


async def test_a_long_text_is_cut_at_the_length_of_its_kind(backend: Backend) -> None:
    long = "city " * 100

    query, document = await done(
        backend,
        COLBERT,
        Task.EMBED,
        [item("multi_vector", long, is_query=True), item("multi_vector", long)],
    )

    lengths = [len(msgspec.json.decode(o.result)["multi_vector"]) for o in (query, document)]
    assert lengths == [24, 40]
    assert query.truncated_from == document.truncated_from > 40
    (failed,) = await backend.ask(COLBERT, Task.EMBED, [item("multi_vector", long)], truncate=False)
    assert isinstance(failed, Failed)
    assert failed.code == "input_too_long"


async def test_a_request_for_several_outputs_costs_one_run(
    models: Path, tmp_path: Path, valkey_server: Valkey
) -> None:
    valkey_server.flush()
    body = {
        "model": SEVERAL,
        "input": [f"{TEXT} {number}" for number in range(40)],
        "outputs": ["sparse", "dense", "multi_vector"],
    }
    request = post("/v1/embed", msgspec.json.encode(body))
    async with listening_backend(models, runs_graphs=True, threads=1) as running:
        backends = [{"id": "eu-0", "url": f"http://127.0.0.1:{running.port}"}]
        regions = [{"name": "eu", "pools": [{"backends": backends}]}]
        async with (
            running_worker(tmp_path, valkey_server.url, regions=regions) as worker,
            worker.connect() as connection,
        ):
            await connection.send(request)
            first = await connection.response()
            await connection.send(request)
            again = await connection.response()

    assert first.status == 200, first
    assert first.headers["sluicegate-rows"] == "computed=40, known=80"
    assert (
        first.json()["usage"] | {"items": 120, "computed": 120, "rows": 40}
        == (first.json()["usage"])
    )
    assert {*first.json()["results"][0]} == {"embedding", "sparse", "multi_vector"}
    assert "; hit" in again.headers["cache-status"]
    assert again.json()["results"] == first.json()["results"]
