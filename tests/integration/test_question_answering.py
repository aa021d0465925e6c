"""Questions are answered over HTTP by an imported checkpoint, and bad questions are refused."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from sluicegate import AsyncSluicegate, InvalidItem
from sluicegate.client.routes import Question
from testing.raw_http import KEY
from testing.waiting import eventually
from tests.parity.checkpoints import MAX_TOKENS, Checkpoint
from tests.parity.served import without_device_graphs, write_models
from tests.support.listening_backend import listening_backend
from tests.support.worker import running_worker

pytestmark = pytest.mark.anyio
MODEL = "bert-answer"
OTHER = "bert-text"
CONTEXT = "The 😀 card was lost in Zürich. " * 20
ITEM: Question = {"question": "Where is my card?", "context": CONTEXT}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def url(
    anyio_backend: str, valkey_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    valkey_server.flush()
    folder = tmp_path_factory.mktemp("answers")
    with without_device_graphs():
        checkpoints = [
            Checkpoint(family="bert", purpose="answer"),
            Checkpoint(family="bert", purpose="text"),
        ]
        models = write_models(folder / "models", checkpoints)
    async with listening_backend(models, runs_graphs=True, threads=1) as backend:
        pool = {"backends": [{"id": "eu-0", "url": backend.endpoint().url}]}
        regions = [{"name": "eu", "pools": [pool]}]
        async with running_worker(folder, valkey_server.url, regions=regions) as worker:
            found = f"http://127.0.0.1:{worker.port}"
            async with AsyncSluicegate(found, key=KEY) as client:

                async def is_served() -> bool:
                    return MODEL in {model.name for model in (await client.list_models()).data}

                await eventually(is_served)
            yield found


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncSluicegate]:
    async with AsyncSluicegate(url, key=KEY) as opened:
        yield opened


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60.0) as opened:
        yield opened


async def test_answers_are_spans_of_the_context_in_code_points(client: AsyncSluicegate) -> None:
    answer = await client.answer(MODEL, ITEM, top_k=5)
    (result,) = answer.results

    assert len(result.answers) == 5
    for found in result.answers:
        assert found.answer == CONTEXT[found.start : found.end]
    assert [a.score for a in result.answers] == sorted([a.score for a in result.answers])[::-1]
    assert 0.0 < result.no_answer_score < 1.0
    assert not result.truncated


async def test_a_long_context_costs_a_row_for_each_window(client: AsyncSluicegate) -> None:
    short = await client.answer(MODEL, {"question": "Who?", "context": "A card."}, overlap=1)
    long = await client.answer(MODEL, {"question": "Who?", "context": CONTEXT}, overlap=1)

    assert short.usage.rows == 1
    assert long.usage.rows > 2
    assert long.usage.tokens < long.usage.rows * MAX_TOKENS


async def test_a_list_is_answered_like_its_items(client: AsyncSluicegate) -> None:
    items: list[Question] = [ITEM, {"question": "What?", "context": "A 😀 was lost."}]

    together = await client.answer(MODEL, items, top_k=2)
    alone = [(await client.answer(MODEL, item, top_k=2)).results[0] for item in items]

    assert together.results == alone
    assert [part async for part in client.in_parts(size=1).answer(MODEL, items, top_k=2)] == alone


async def test_hugging_face_s_route_answers_from_the_same_cache(
    client: AsyncSluicegate, http: httpx.AsyncClient
) -> None:
    (native,) = (await client.answer(MODEL, ITEM, top_k=3, max_answer_tokens=4)).results
    body: dict[str, Any] = {"inputs": ITEM, "parameters": {"top_k": 3, "max_answer_len": 4}}

    found = await http.post(f"/models/{MODEL}", json=body)
    body["parameters"]["handle_impossible_answer"] = True
    or_none = await http.post(f"/models/{MODEL}/pipeline/question-answering", json=body)

    assert "hit" in found.headers["cache-status"]
    assert "hit" in or_none.headers["cache-status"]
    expected = [
        {"answer": a.answer, "score": a.score, "start": a.start, "end": a.end}
        for a in native.answers
    ]
    none = {"answer": "", "score": native.no_answer_score, "start": 0, "end": 0}
    assert found.json() == expected
    assert or_none.json() == sorted([*expected, none], key=lambda a: -float(str(a["score"])))[:3]


async def test_the_tensors_of_a_question_are_answered(http: httpx.AsyncClient) -> None:
    inputs = [
        {"name": "TEXT", "shape": [2, 1], "datatype": "BYTES", "data": ["A card.", "Lost."]},
        {"name": "QUESTION", "shape": [1, 1], "datatype": "BYTES", "data": ["What?"]},
    ]

    found = (await http.post(f"/v2/models/{MODEL}/infer", json={"inputs": inputs})).json()

    assert [output["name"] for output in found["outputs"]] == ["ANSWERS", "NO_ANSWER_SCORE"]
    assert all(output["shape"] == [2, 1] for output in found["outputs"])


@pytest.mark.parametrize(
    ("fields", "status", "named"),
    [
        ({"input": "a text"}, 400, "input"),
        ({"input": {"question": "a"}}, 400, "context"),
        ({"input": {"question": "a", "context": None}}, 400, "context"),
        ({"input": {"question": ["a"], "context": "b"}}, 400, "question"),
        ({"input": {**ITEM, "answer": "a"}}, 400, "answer"),
        ({"input": []}, 400, "input"),
        ({"input": {"question": "", "context": "a"}}, 422, "empty"),
        ({"input": {"question": "a", "context": ""}}, 422, "empty"),
        ({"input": {"question": "who " * 90, "context": "a"}}, 422, "the question has"),
        ({"input": {"question": "a " * 9000, "context": "a"}}, 422, "question"),
        ({"input": {"question": "a", "context": "a " * 9000}}, 422, "windows"),
        ({"input": ITEM, "overlap": MAX_TOKENS}, 422, "overlap"),
        ({"input": ITEM, "max_row_tokens": MAX_TOKENS + 1}, 422, "max_row_tokens"),
        ({"input": ITEM, "max_row_tokens": 4}, 422, "the question has"),
        ({"input": ITEM, "top_k": 0}, 400, "top_k"),
        ({"input": ITEM, "top_k": 101}, 400, "top_k"),
        ({"input": ITEM, "max_answer_tokens": 513}, 400, "max_answer_tokens"),
        ({"input": ITEM, "overlap": -1}, 400, "overlap"),
        ({"input": ITEM, "model": OTHER}, 400, OTHER),
        ({"input": ITEM, "question": "a"}, 400, "question"),
    ],
)
async def test_a_bad_question_is_refused_by_name(
    http: httpx.AsyncClient, fields: dict[str, Any], status: int, named: str
) -> None:
    response = await http.post("/v1/answer", json={"model": MODEL} | fields)

    assert response.status_code == status, response.text
    assert named in response.text


async def test_one_bad_question_fails_alone_if_others_go_on(client: AsyncSluicegate) -> None:
    items: list[Question] = [{"question": "", "context": "a"}, ITEM]

    answer = await client.answer(MODEL, items, on_error="continue")

    assert answer.results[0].error is not None
    assert answer.results[0].error.code == "empty_input"
    assert answer.results[1].answers
    with pytest.raises(InvalidItem):
        await client.answer(MODEL, items)
