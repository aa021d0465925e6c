"""Calls the system with LlamaIndex's embeddings, of OpenAI and of TEI.

Those of TEI read nothing of an answer but its body, so that whatever error is a `KeyError`.
"""

import asyncio
import threading
from typing import Any

import httpx
import openai
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

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


def over_openai(target: Target, *, key: str = "", model: str = "minilm", **more: Any) -> Any:
    return OpenAIEmbedding(
        model_name=model,
        api_base=f"{target.url}/v1",
        api_key=key or target.key,
        **{"max_retries": 0, "timeout": 60.0} | more,
    )


def over_tei(target: Target, *, key: str = "", model: str = "minilm", timeout: float = 60.0) -> Any:
    return TextEmbeddingsInference(
        model_name=model,
        base_url=f"{target.url}/tei/{model}",
        auth_token=key or target.key,
        timeout=timeout,
    )


def same_vectors(target: Target, asked: Any) -> None:
    expected = target.vectors(TEXTS)
    assert_close(asked.get_text_embedding_batch(TEXTS), expected)
    assert_close(asked.get_text_embedding(TEXTS[0]), expected[0])
    assert_close(asked.get_query_embedding(TEXTS[1]), expected[1])
    assert_close(asyncio.run(asked.aget_text_embedding_batch(TEXTS)), expected)
    text = new_text()
    asked.get_text_embedding(text)
    assert target.native("/v1/embed", {"model": "minilm", "input": text})["usage"]["hit"] == 1


def vectors_are_those_of_the_native_route(target: Target) -> None:
    same_vectors(target, over_openai(target))


def vectors_of_tei_are_those_of_the_native_route(target: Target) -> None:
    same_vectors(target, over_tei(target))


def vectors_can_be_shortened(target: Target) -> None:
    found = over_openai(target, dimensions=64).get_text_embedding(TEXTS[0])
    assert_close([found], target.vectors(TEXTS[:1], dimensions=64))


def a_wrong_key_is_an_authentication_error(target: Target) -> None:
    wrong = over_openai(target, key="sk-nobody-has-this-one")
    raised(openai.AuthenticationError, lambda: wrong.get_text_embedding("a"))
    narrow = over_openai(target, key=target.narrow_key)
    raised(openai.PermissionDeniedError, lambda: narrow.get_text_embedding("a"))


def an_unknown_model_is_not_found(target: Target) -> None:
    unknown = over_openai(target, model="none")
    raised(openai.NotFoundError, lambda: unknown.get_text_embedding("a"))


def over_the_limit_the_clients_own_retry_succeeds(target: Target) -> None:
    limited = over_openai(target, key=target.limited_key)
    raised(openai.RateLimitError, lambda: [limited.get_text_embedding("a") for _ in range(3)])
    patient = over_openai(target, key=target.limited_key, max_retries=6)
    assert [patient.get_text_embedding("a") for _ in range(2)]


def the_clients_own_timeout_ends_its_call(target: Target) -> None:
    soon = over_openai(target, model=target.slow_model, timeout=0.5)
    raised(openai.APITimeoutError, lambda: soon.get_text_embedding(new_text()))


def its_own_retry_after_a_timeout_finds_the_work_done(target: Target) -> None:
    patient = over_openai(target, model=target.slow_model, timeout=1.0, max_retries=6)
    assert patient.get_text_embedding(new_text())


def a_deadline_of_the_server_is_its_error(target: Target) -> None:
    headers = {"X-Request-Timeout": "0.5"}
    late = over_openai(target, model=target.slow_model, default_headers=headers)
    error = raised(openai.InternalServerError, lambda: late.get_text_embedding(new_text()))
    assert error.code == "deadline_exceeded"


def bad_input_is_refused(target: Target) -> None:
    asked = over_openai(target, dimensions=100_000)
    error = raised(openai.BadRequestError, lambda: asked.get_text_embedding("a"))
    assert error.code == "bad_dimensions"


def no_vector(asked: Any, text: str = "a") -> None:
    raised(KeyError, lambda: asked.get_text_embedding(text))


def a_wrong_key_is_no_vector(target: Target) -> None:
    no_vector(over_tei(target, key="sk-nobody-has-this-one"))
    no_vector(over_tei(target, key=target.narrow_key))


def an_unknown_model_is_no_vector(target: Target) -> None:
    no_vector(over_tei(target, model="none"))


def over_the_limit_there_is_no_vector(target: Target) -> None:
    """It tries nothing again by itself, and reads no `Retry-After`."""
    limited = over_tei(target, key=target.limited_key)
    raised(KeyError, lambda: [limited.get_text_embedding("a") for _ in range(3)])
    threading.Event().wait(2.0)
    assert limited.get_text_embedding("a")


def the_clients_own_timeout_ends_its_call_of_tei(target: Target) -> None:
    """It can send no deadline."""
    soon = over_tei(target, model=target.slow_model, timeout=0.5)
    raised(httpx.TimeoutException, lambda: soon.get_text_embedding(new_text()))


def bad_input_is_no_vector(target: Target) -> None:
    no_vector(over_tei(target), "")


OVER_OPENAI = Client(
    name="llama-index-embeddings-openai",
    distribution="llama-index-embeddings-openai",
    rows={
        Row.RESULT: [vectors_are_those_of_the_native_route, vectors_can_be_shortened],
        Row.WRONG_KEY: [a_wrong_key_is_an_authentication_error],
        Row.UNKNOWN_MODEL: [an_unknown_model_is_not_found],
        Row.OVER_LIMIT: [over_the_limit_the_clients_own_retry_succeeds],
        Row.DEADLINE: [
            the_clients_own_timeout_ends_its_call,
            its_own_retry_after_a_timeout_finds_the_work_done,
            a_deadline_of_the_server_is_its_error,
        ],
        Row.BAD_INPUT: [bad_input_is_refused],
    },
)
OVER_TEI = Client(
    name="llama-index-embeddings-text-embeddings-inference",
    distribution="llama-index-embeddings-text-embeddings-inference",
    rows={
        Row.RESULT: [vectors_of_tei_are_those_of_the_native_route],
        Row.WRONG_KEY: [a_wrong_key_is_no_vector],
        Row.UNKNOWN_MODEL: [an_unknown_model_is_no_vector],
        Row.OVER_LIMIT: [over_the_limit_there_is_no_vector],
        Row.DEADLINE: [the_clients_own_timeout_ends_its_call_of_tei],
        Row.BAD_INPUT: [bad_input_is_no_vector],
    },
)

if __name__ == "__main__":
    run_checks(OVER_OPENAI, OVER_TEI)
