"""The kinds of texts of other products name the prompts of a model."""

from typing import Any

import msgspec
import pytest

from tests.support.api import Api
from tests.support.dialects import serve_models

pytestmark = pytest.mark.anyio
PROMPTS = ["query", "passage", "Clustering", "STS"]
COHERE = ("/v2/embed", {"model": "minilm", "texts": ["a"]})
JINA = ("/jina/v1/embeddings", {"model": "minilm", "input": "a"})
VOYAGE = ("/voyage/v1/embeddings", {"model": "minilm", "input": "a"})
TEI = ("/tei/minilm/embed", {"inputs": "a"})
HUGGING_FACE = ("/models/minilm", {"inputs": "a"})


@pytest.mark.parametrize(
    ("dialect", "field", "value", "prompt"),
    [
        (COHERE, "input_type", "search_query", "query"),
        (COHERE, "input_type", "search_document", "passage"),
        (COHERE, "input_type", "clustering", "Clustering"),
        (COHERE, "input_type", "classification", None),
        (COHERE, "input_type", "image", None),
        (JINA, "task", "retrieval.query", "query"),
        (JINA, "task", "separation", "Clustering"),
        (JINA, "task", "text-matching", "STS"),
        (VOYAGE, "input_type", "query", "query"),
        (VOYAGE, "input_type", "document", "passage"),
        (TEI, "prompt_name", "STS", "STS"),
        (HUGGING_FACE, "prompt_name", "query", "query"),
    ],
)
async def test_a_kind_of_texts_is_the_prompt_of_the_native_route(
    dialect: tuple[str, dict[str, Any]], field: str, value: str, prompt: str | None
) -> None:
    api = serve_models(Api())
    infos = api.scene.models.infos
    infos["minilm"] = msgspec.structs.replace(infos["minilm"], prompts=PROMPTS)
    path, body = dialect
    native = {"model": "minilm", "input": "a"}

    async with api.client() as client:
        await client.post("/v1/embed", json=native | {"prompt_name": prompt})
        found = await client.post(path, json=body | {field: value})
        other = await client.post("/v1/embed", json=native | {"prompt_name": "other"})

    assert "hit" in found.headers["cache-status"]
    assert "hit" not in other.headers["cache-status"]
