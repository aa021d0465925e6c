"""Calls the system with LangChain's embeddings of Hugging Face, and its errors of that client."""

import asyncio
import threading
from typing import Any

import httpx
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError, InferenceTimeoutError
from langchain_huggingface import HuggingFaceEndpoint, HuggingFaceEndpointEmbeddings

from tests.clients.checks import (
    TEXTS,
    Client,
    Row,
    Target,
    assert_close,
    new_text,
    raised,
    run_checks,
)


def embeddings(
    target: Target, *, key: str = "", path: str = "models/minilm", **options: Any
) -> Any:
    """Return embeddings with clients of a URL: the class takes none as `model`."""
    url, token = f"{target.url}/{path}", key or target.key
    made = HuggingFaceEndpointEmbeddings(model="minilm", huggingfacehub_api_token=token)
    made.client = InferenceClient(model=url, token=token, **options)
    made.async_client = AsyncInferenceClient(model=url, token=token, **options)
    return made


def vectors_are_those_of_the_native_route(target: Target) -> None:
    expected = target.vectors(TEXTS)
    for path in ("models/minilm", "tei/minilm"):
        asked = embeddings(target, path=path)

        assert_close(asked.embed_documents(TEXTS), expected)
        assert_close(asked.embed_query(TEXTS[0]), expected[0])
        assert_close(asyncio.run(asked.aembed_documents(TEXTS)), expected)


def an_answer_is_a_hit_through_the_native_route(target: Target) -> None:
    text = new_text()
    embeddings(target).embed_query(text)
    assert target.native("/v1/embed", {"model": "minilm", "input": text})["usage"]["hit"] == 1


def refused(status: int, asked: Any, text: str = "a") -> Any:
    error = raised(HfHubHTTPError, lambda: asked.embed_query(text))
    assert error.response.status_code == status, error
    return error


def a_wrong_key_is_refused(target: Target) -> None:
    refused(401, embeddings(target, key="sk-nobody-has-this-one"))
    refused(403, embeddings(target, key=target.narrow_key))


def an_unknown_model_is_not_found(target: Target) -> None:
    for path in ("models/none", "tei/none"):
        assert "No model `none`" in str(refused(404, embeddings(target, path=path)))


def over_the_limit_the_client_is_told_when_to_ask_again(target: Target) -> None:
    """It tries nothing again by itself."""
    limited = embeddings(target, key=target.limited_key)

    error = raised(HfHubHTTPError, lambda: [limited.embed_query("a") for _ in range(3)])

    assert error.response.status_code == 429
    threading.Event().wait(float(error.response.headers["retry-after"]))
    assert limited.embed_query("a")


def the_clients_own_timeout_ends_its_call(target: Target) -> None:
    soon = embeddings(target, path=f"models/{target.slow_model}", timeout=0.5)
    timeouts = (InferenceTimeoutError, httpx.TimeoutException)  # by the version of the client
    raised(timeouts, lambda: soon.embed_query(new_text()))


def a_deadline_of_the_server_is_its_error(target: Target) -> None:
    path, headers = f"models/{target.slow_model}", {"X-Request-Timeout": "0.5"}
    refused(504, embeddings(target, path=path, headers=headers), new_text())


def bad_input_is_refused(target: Target) -> None:
    refused(422, embeddings(target), "")
    refused(400, embeddings(target, path="tei/minilm"), "")


LANGCHAIN = Client(
    name="langchain-huggingface",
    distribution="langchain-huggingface",
    rows={
        Row.RESULT: [
            vectors_are_those_of_the_native_route,
            an_answer_is_a_hit_through_the_native_route,
        ],
        Row.WRONG_KEY: [a_wrong_key_is_refused],
        Row.UNKNOWN_MODEL: [an_unknown_model_is_not_found],
        Row.OVER_LIMIT: [over_the_limit_the_client_is_told_when_to_ask_again],
        Row.DEADLINE: [
            the_clients_own_timeout_ends_its_call,
            a_deadline_of_the_server_is_its_error,
        ],
        Row.BAD_INPUT: [bad_input_is_refused],
    },
    error=HfHubHTTPError,
    not_answered={
        "HuggingFaceEndpoint": lambda target: HuggingFaceEndpoint(
            endpoint_url=f"{target.url}/models/minilm", huggingfacehub_api_token=target.key
        ).invoke("a"),
    },
)

if __name__ == "__main__":
    run_checks(LANGCHAIN)
