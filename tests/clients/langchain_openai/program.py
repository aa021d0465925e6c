"""Calls the system with LangChain's embeddings of OpenAI, and its errors of that client."""

import asyncio
from typing import Any

import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

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


def embeddings(target: Target, *, key: str = "", model: str = "minilm", **more: Any) -> Any:
    return OpenAIEmbeddings(
        model=model,
        base_url=f"{target.url}/v1",
        api_key=key or target.key,
        check_embedding_ctx_length=False,
        **{"max_retries": 0} | more,
    )


def vectors_are_those_of_the_native_route(target: Target) -> None:
    expected = target.vectors(TEXTS)
    asked = embeddings(target)

    assert_close(asked.embed_documents(TEXTS), expected)
    assert_close(asked.embed_query(TEXTS[0]), expected[0])
    assert_close(asyncio.run(embeddings(target).aembed_documents(TEXTS)), expected)
    assert_close(asyncio.run(embeddings(target).aembed_query(TEXTS[1])), expected[1])


def vectors_can_be_shortened(target: Target) -> None:
    found = embeddings(target, dimensions=64).embed_query(TEXTS[0])
    assert_close([found], target.vectors(TEXTS[:1], dimensions=64))


def an_answer_is_a_hit_through_the_native_route(target: Target) -> None:
    text = new_text()
    embeddings(target).embed_query(text)
    assert target.native("/v1/embed", {"model": "minilm", "input": text})["usage"]["hit"] == 1


def a_wrong_key_is_refused(target: Target) -> None:
    wrong = embeddings(target, key="sk-nobody-has-this-one")
    raised(openai.AuthenticationError, lambda: wrong.embed_query("a"))
    narrow = embeddings(target, key=target.narrow_key)
    raised(openai.PermissionDeniedError, lambda: narrow.embed_query("a"))


def an_unknown_model_is_not_found(target: Target) -> None:
    unknown = embeddings(target, model="none")
    raised(openai.NotFoundError, lambda: unknown.embed_query("a"))


def over_the_limit_the_clients_own_retry_succeeds(target: Target) -> None:
    limited = embeddings(target, key=target.limited_key)
    error = raised(openai.RateLimitError, lambda: [limited.embed_query("a") for _ in range(3)])
    assert error.code == "rate_limit_exceeded"
    patient = embeddings(target, key=target.limited_key, max_retries=4)
    assert [patient.embed_query("a") for _ in range(2)]


def the_clients_own_timeout_ends_its_call(target: Target) -> None:
    soon = embeddings(target, model=target.slow_model, timeout=0.5)
    raised(openai.APITimeoutError, lambda: soon.embed_query(new_text()))


def its_own_retry_after_a_timeout_finds_the_work_done(target: Target) -> None:
    patient = embeddings(target, model=target.slow_model, timeout=1.0, max_retries=6)
    assert patient.embed_query(new_text())


def a_deadline_of_the_server_is_its_error(target: Target) -> None:
    headers = {"X-Request-Timeout": "0.5"}
    late = embeddings(target, model=target.slow_model, default_headers=headers)
    error = raised(openai.InternalServerError, lambda: late.embed_query(new_text()))
    assert error.code == "deadline_exceeded"


def bad_input_is_refused(target: Target) -> None:
    error = raised(openai.BadRequestError, lambda: embeddings(target).embed_documents([""]))
    assert error.code == "empty_input"


LANGCHAIN = Client(
    name="langchain-openai",
    distribution="langchain-openai",
    rows={
        Row.RESULT: [
            vectors_are_those_of_the_native_route,
            vectors_can_be_shortened,
            an_answer_is_a_hit_through_the_native_route,
        ],
        Row.WRONG_KEY: [a_wrong_key_is_refused],
        Row.UNKNOWN_MODEL: [an_unknown_model_is_not_found],
        Row.OVER_LIMIT: [over_the_limit_the_clients_own_retry_succeeds],
        Row.DEADLINE: [
            the_clients_own_timeout_ends_its_call,
            its_own_retry_after_a_timeout_finds_the_work_done,
            a_deadline_of_the_server_is_its_error,
        ],
        Row.BAD_INPUT: [bad_input_is_refused],
    },
    error=openai.NotFoundError,
    not_answered={
        "ChatOpenAI": lambda target: ChatOpenAI(
            model="minilm", base_url=f"{target.url}/v1", api_key=target.key, max_retries=0
        ).invoke("a"),
    },
)

if __name__ == "__main__":
    run_checks(LANGCHAIN)
