"""Calls the system with LlamaIndex's embeddings of TEI, which read nothing of errors."""

import asyncio
from functools import partial
from typing import Any

from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

from tests.clients.checks import Target, assert_close, raised, run_checks

_TEXTS = ["a gorgeous, witty movie", "only labored gags", "how do I reset my PIN?"]


def embeddings(target: Target, *, key: str = "", model: str = "minilm") -> Any:
    return TextEmbeddingsInference(
        model_name=model, base_url=f"{target.url}/tei/{model}", auth_token=key or target.key
    )


def vectors_are_those_of_the_native_route(target: Target) -> None:
    native = target.native("/v1/embed", {"model": "minilm", "input": _TEXTS})
    expected = [each["embedding"] for each in native["results"]]
    asked = embeddings(target)

    assert_close(asked.get_text_embedding_batch(_TEXTS), expected)
    assert_close(asked.get_text_embedding(_TEXTS[0]), expected[0])
    assert_close(asked.get_query_embedding(_TEXTS[1]), expected[1])
    assert_close(asyncio.run(asked.aget_text_embedding_batch(_TEXTS)), expected)


def an_error_is_no_vector(target: Target) -> None:
    for refused in (
        embeddings(target, key="sk-nobody-has-this-one"),
        embeddings(target, key=target.narrow_key),
        embeddings(target, model="none"),
    ):
        raised(Exception, partial(refused.get_text_embedding, "a"))


if __name__ == "__main__":
    run_checks([vectors_are_those_of_the_native_route, an_error_is_no_vector])
