"""Tokens are shown to native, TEI's and Cohere's clients; OpenAI's may send them as input."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from sluicegate.gateway.config.document import ModelConfig
from sluicegate.gateway.types import Rule
from sluicegate.wire.protocol import Task
from tests.support.api import KEY, Api, problem
from tests.support.dialects import answer_alike, sent
from tests.support.documents import conforms, documents
from tests.support.inference_scene import INFO

pytestmark = pytest.mark.anyio
_TEXT = "ä sentence"
_COLUMNS = {
    "ids": [101, 1037, 6251, 102],
    "tokens": ["[CLS]", "a", "sentence", "[SEP]"],
    "offsets": [None, [0, 1], [2, 10], None],
}
_RESULTS = {
    Task.TOKENIZE: msgspec.json.encode({"count": 4, "fits": True, "windows": 1} | _COLUMNS),
    Task.DETOKENIZE: b'{"text":"a sentence"}',
    Task.EMBED: b'{"embedding":[0.25,-0.5]}',
}
_MODEL = msgspec.structs.replace(INFO, name="minilm", tasks=[Task.EMBED], shows_tokens=True)


def show_tokens(api: Api) -> Api:
    """Serve a model that shows tokens, and one of an earlier backend that does not."""
    api.scene.models.infos["minilm"] = _MODEL
    api.scene.runner.result = lambda _: _RESULTS[api.scene.runner.works[-1].task]
    return api


@pytest.fixture
async def api(anyio_backend: str) -> Api:
    return show_tokens(Api())


@pytest.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with api.client() as opened:
        yield opened


def take_tokens(api: Api) -> None:
    """Configure the model so that ids of its vocabulary are texts."""
    api.configure(models={"minilm": ModelConfig(token_ids=True)})


def items_of(api: Api) -> list[Any]:
    return [msgspec.msgpack.decode(body) for body in api.scene.runner.computed]


@pytest.mark.parametrize(
    ("path", "body", "example"),
    [
        ("/v1/tokenize", {"input": [_TEXT]}, Task.TOKENIZE),
        ("/v1/detokenize", {"ids": [101, 1037, 6251, 102]}, Task.DETOKENIZE),
        ("/v1/detokenize", {"ids": [[101, 1037, 6251, 102]]}, Task.DETOKENIZE),
    ],
)
async def test_tokens_are_an_answer_like_others(
    client: httpx.AsyncClient, path: str, body: Any, example: Task
) -> None:
    first = await client.post(path, json={"model": "minilm"} | body)
    again = await client.post(path, json={"model": "minilm"} | body)

    assert first.json()["results"] == [msgspec.json.decode(_RESULTS[example])]
    assert again.json()["usage"]["hit"] == 1
    document = documents()["customers"]
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    conforms(document, content["application/json"]["schema"], first.json())


async def test_tokens_count_against_limits_on_requests_and_items(
    api: Api, client: httpx.AsyncClient
) -> None:
    api.limit(Rule(name="items", unit="items", capacity=3, window=60.0))
    asked = {"model": "minilm", "input": ["a", "b"]}

    answered = await client.post("/v1/tokenize", json=asked)
    refused = await client.post("/v1/tokenize", json=asked)

    assert answered.status_code == 200
    assert "`items`" in problem(refused, 429, "rate_limited")


async def test_a_model_whose_backends_show_no_tokens_says_so(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/tokenize", json={"model": "sentiment", "input": "a"})

    assert "not `tokenize`" in problem(response, 400, "task_not_supported")


async def test_tei_counts_bytes_and_cuts_the_text_itself(client: httpx.AsyncClient) -> None:
    response = await client.post("/tei/minilm/tokenize", json={"inputs": _TEXT})
    both = await client.post("/tei/minilm/tokenize", json={"inputs": [_TEXT, _TEXT]})

    shown = [
        {"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None},
        {"id": 1037, "text": "ä", "special": False, "start": 0, "stop": 2},
        {"id": 6251, "text": "sentence", "special": False, "start": 3, "stop": 11},
        {"id": 102, "text": "[SEP]", "special": True, "start": None, "stop": None},
    ]
    assert response.json() == [shown]
    assert both.json() == [shown, shown]


@pytest.mark.parametrize("ids", [[101, 102], [[101], [102]]])
async def test_tei_decodes_to_a_list(client: httpx.AsyncClient, ids: Any) -> None:
    response = await client.post(
        "/tei/minilm/decode", json={"ids": ids, "skip_special_tokens": False}
    )

    assert response.json() == ["a sentence"] * (1 if ids == [101, 102] else 2)


async def test_cohere_s_clients_are_answered_by_the_native_routes(
    api: Api, client: httpx.AsyncClient
) -> None:
    tokens = await client.post("/v1/tokenize", json={"model": "minilm", "text": _TEXT})
    text = await client.post("/v1/detokenize", json={"model": "minilm", "tokens": [1037, 6251]})
    native = await client.post(
        "/v1/tokenize", json={"model": "minilm", "input": _TEXT, "add_special_tokens": False}
    )
    wrong = await client.post("/v1/tokenize", json={"model": "minilm", "inputs": _TEXT})

    meta = {"api_version": {"version": "1"}}
    assert tokens.json() == {
        "tokens": _COLUMNS["ids"],
        "token_strings": _COLUMNS["tokens"],
        "meta": meta,
    }
    assert text.json() == {"text": "a sentence", "meta": meta}
    assert items_of(api) == [_TEXT, [1037, 6251]]
    assert native.json()["usage"]["hit"] == 1
    assert "inputs" in problem(wrong, 400, "invalid_request")


async def test_cohere_s_clients_have_no_text_of_no_tokens(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/detokenize", json={"model": "minilm", "tokens": []})

    assert "empty" in problem(response, 400, "invalid_request")


@pytest.mark.parametrize(
    ("given", "items"),
    [
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["a", "b"], ["a", "b"]),
        ("a", ["a"]),
    ],
)
async def test_embeddings_of_tokens_are_computed_by_their_ids(
    api: Api, client: httpx.AsyncClient, given: Any, items: list[Any]
) -> None:
    take_tokens(api)
    body = {"model": "minilm", "input": given}

    answers = [await client.post("/v1/embeddings", json=body) for _ in range(2)]

    assert [len(one.json()["data"]) for one in answers] == [len(items)] * 2
    assert items_of(api) == items
    assert "hit" in answers[1].headers["cache-status"]


@pytest.mark.parametrize("given", [[1, 2], [[1, 2]], [[1, 2], [3]]])
async def test_tei_s_tokens_are_those_of_openai_s_clients(
    api: Api, client: httpx.AsyncClient, given: Any
) -> None:
    refused = await client.post("/tei/minilm/embed", json={"inputs": given})
    take_tokens(api)

    vectors = await client.post("/tei/minilm/embed", json={"inputs": given})
    again = await client.post("/v1/embeddings", json={"model": "minilm", "input": given})
    mixed = await client.post("/tei/minilm/embed", json={"inputs": ["a", *given]})

    assert vectors.json() == [[0.25, -0.5]] * (2 if given == [[1, 2], [3]] else 1)
    assert "hit" in again.headers["cache-status"]
    assert (refused.status_code, mixed.status_code) == (422, 422)


async def test_tokens_and_texts_that_look_alike_have_keys_of_their_own(
    api: Api, client: httpx.AsyncClient
) -> None:
    take_tokens(api)

    for given in ([1], [[1]], [[1, 2]], [[2, 1]], "1", ["1"], "[1]", [1, 2]):
        await client.post("/v1/embeddings", json={"model": "minilm", "input": given})

    assert items_of(api) == [[1], [1, 2], [2, 1], "1", "[1]"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["a", 1], "list of lists"),
        ([[1], 2], "list of lists"),
        ([-1], ">= 0"),
        ([[1.5]], "float"),
        ([True], "bool"),
        ([2**31], "<= 2147483647"),
        ([], "empty"),
    ],
)
async def test_what_is_neither_text_nor_tokens_is_refused(
    api: Api, client: httpx.AsyncClient, given: Any, named: str
) -> None:
    take_tokens(api)

    response = await client.post("/v1/embeddings", json={"model": "minilm", "input": given})

    assert response.status_code == 400
    assert named in response.json()["error"]["message"]


async def test_tokens_are_refused_at_once_when_the_model_takes_them_no_more(
    api: Api, client: httpx.AsyncClient
) -> None:
    take_tokens(api)
    body = {"model": "minilm", "input": [1]}
    before = await client.post("/v1/embeddings", json=body)
    api.configure(models={})

    after = await client.post("/v1/embeddings", json=body)

    assert (before.status_code, after.status_code) == (200, 400)


@pytest.mark.parametrize("tier", ["memory", "redis"])
async def test_both_entry_points_answer_alike(anyio_backend: str, tier: str) -> None:
    headers = ("Host: 127.0.0.1:8080", f"Authorization: Bearer {KEY}")
    bodies = (
        ("/v1/tokenize", b'{"model":"minilm","input":"a"}'),
        ("/v1/tokenize", b'{"model":"minilm","text":"a"}'),
        ("/v1/detokenize", b'{"model":"minilm","ids":[1]}'),
        ("/v1/detokenize", b'{"model":"minilm","tokens":[1]}'),
        ("/tei/minilm/tokenize", b'{"inputs":"a sentence"}'),
        ("/tei/minilm/decode", b'{"ids":[1]}'),
        ("/v1/embeddings", b'{"model":"minilm","input":[1]}'),
    )
    requests = [sent(f"POST {path}", headers, body) for path, body in bodies]

    answers, _ = await answer_alike(requests, tier, show_tokens)

    assert [answer.split(b" ", 2)[1] for answer in answers] == [b"200"] * 6 + [b"400"]
