"""Calls the system with LangChain's embeddings, over the clients of OpenAI and Hugging Face."""

import asyncio
from typing import Any

import openai
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_openai import OpenAIEmbeddings

from tests.clients.checks import Target, assert_close, raised, run_checks

_TEXTS = ["a gorgeous, witty movie", "only labored gags", "how do I reset my PIN?"]


def over_openai(target: Target, *, key: str = "", model: str = "minilm", retries: int = 0) -> Any:
    return OpenAIEmbeddings(
        model=model,
        base_url=f"{target.url}/v1",
        api_key=key or target.key,
        check_embedding_ctx_length=False,
        max_retries=retries,
    )


def over_hugging_face(target: Target, *, key: str = "", path: str = "models/minilm") -> Any:
    """Return embeddings with clients of a URL: the class takes none as `model`."""
    url, token = f"{target.url}/{path}", key or target.key
    embeddings = HuggingFaceEndpointEmbeddings(model="minilm", huggingfacehub_api_token=token)
    embeddings.client = InferenceClient(model=url, token=token)
    embeddings.async_client = AsyncInferenceClient(model=url, token=token)
    return embeddings


def vectors_are_those_of_the_native_route(target: Target) -> None:
    native = target.native("/v1/embed", {"model": "minilm", "input": _TEXTS})
    expected = [each["embedding"] for each in native["results"]]
    for embeddings in (
        over_openai(target),
        over_hugging_face(target),
        over_hugging_face(target, path="tei/minilm"),
    ):
        assert_close(embeddings.embed_documents(_TEXTS), expected)
        assert_close(embeddings.embed_query(_TEXTS[0]), expected[0])
        assert_close(asyncio.run(embeddings.aembed_documents(_TEXTS)), expected)


def a_wrong_key_is_refused(target: Target) -> None:
    wrong = "sk-nobody-has-this-one"
    one, other = over_openai(target, key=wrong), over_hugging_face(target, key=wrong)
    raised(openai.AuthenticationError, lambda: one.embed_query("a"))
    error = raised(HfHubHTTPError, lambda: other.embed_query("a"))
    assert error.response.status_code == 401


def an_unknown_model_is_not_found(target: Target) -> None:
    one = over_openai(target, model="none")
    other = over_hugging_face(target, path="models/none")
    raised(openai.NotFoundError, lambda: one.embed_query("a"))
    assert "No model `none`" in str(raised(HfHubHTTPError, lambda: other.embed_query("a")))


def bad_input_is_refused(target: Target) -> None:
    raised(openai.BadRequestError, lambda: over_openai(target).embed_documents([""]))
    error = raised(HfHubHTTPError, lambda: over_hugging_face(target).embed_documents([""]))
    assert error.response.status_code == 422


def over_the_limit_the_clients_own_retry_succeeds(target: Target) -> None:
    patient = over_openai(target, key=target.limited_key, retries=4)

    for _ in range(2):
        assert patient.embed_query("a")


if __name__ == "__main__":
    run_checks(
        [
            vectors_are_those_of_the_native_route,
            a_wrong_key_is_refused,
            an_unknown_model_is_not_found,
            bad_input_is_refused,
            over_the_limit_the_clients_own_retry_succeeds,
        ]
    )
