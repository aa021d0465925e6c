"""Calls the system with Haystack's components, over the clients of OpenAI and Hugging Face."""

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"  # noqa: TID251 - read at the import

import asyncio
import threading
from typing import Any

import openai
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.generators.huggingface_api import HuggingFaceAPIChatGenerator
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from huggingface_hub.errors import HfHubHTTPError

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

DOCUMENTS = [Document(content=text) for text in TEXTS]


def over_openai(
    target: Target, *, key: str = "", kind: Any = OpenAITextEmbedder, **more: Any
) -> Any:
    return kind(
        api_key=Secret.from_token(key or target.key),
        api_base_url=f"{target.url}/v1",
        **{"model": "minilm", "max_retries": 0} | more,
    )


def over_hugging_face(
    target: Target,
    *,
    key: str = "",
    path: str = "tei/minilm",
    kind: Any = HuggingFaceAPITextEmbedder,
    **more: Any,
) -> Any:
    return kind(
        api_type="text_embeddings_inference",
        api_params={"url": f"{target.url}/{path}"},
        token=Secret.from_token(key or target.key),
        **{"normalize": True} | more,
    )


def of_documents(embedder: Any) -> list[Any]:
    return [document.embedding for document in embedder.run(DOCUMENTS)["documents"]]


def was_a_miss_and_is_a_hit(target: Target, embedder: Any) -> None:
    text = new_text()
    embedder.run(text)
    assert target.native("/v1/embed", {"model": "minilm", "input": text})["usage"]["hit"] == 1


def vectors_are_those_of_the_native_route(target: Target) -> None:
    expected = target.vectors(TEXTS)

    assert_close(of_documents(over_openai(target, kind=OpenAIDocumentEmbedder)), expected)
    assert_close(over_openai(target).run(TEXTS[0])["embedding"], expected[0])
    again = asyncio.run(over_openai(target).run_async(TEXTS[1]))
    assert_close(again["embedding"], expected[1])
    was_a_miss_and_is_a_hit(target, over_openai(target))


def vectors_can_be_shortened(target: Target) -> None:
    found = over_openai(target, dimensions=64).run(TEXTS[0])["embedding"]
    assert_close([found], target.vectors(TEXTS[:1], dimensions=64))


def a_wrong_key_is_an_authentication_error(target: Target) -> None:
    wrong = over_openai(target, key="sk-nobody-has-this-one")
    raised(openai.AuthenticationError, lambda: wrong.run("a"))
    narrow = over_openai(target, key=target.narrow_key)
    raised(openai.PermissionDeniedError, lambda: narrow.run("a"))


def an_unknown_model_is_not_found(target: Target) -> None:
    unknown = over_openai(target, model="none")
    raised(openai.NotFoundError, lambda: unknown.run("a"))


def over_the_limit_the_clients_own_retry_succeeds(target: Target) -> None:
    limited = over_openai(target, key=target.limited_key)
    raised(openai.RateLimitError, lambda: [limited.run("a") for _ in range(3)])
    patient = over_openai(target, key=target.limited_key, max_retries=4)
    assert [patient.run("a") for _ in range(2)]


def the_clients_own_timeout_ends_its_call(target: Target) -> None:
    soon = over_openai(target, model=target.slow_model, timeout=0.5)
    raised(openai.APITimeoutError, lambda: soon.run(new_text()))


def its_own_retry_after_a_timeout_finds_the_work_done(target: Target) -> None:
    patient = over_openai(target, model=target.slow_model, timeout=1.0, max_retries=6)
    assert patient.run(new_text())["embedding"]


def a_deadline_of_the_server_is_its_error(target: Target) -> None:
    headers = {"headers": {"X-Request-Timeout": "0.5"}}
    late = over_openai(target, model=target.slow_model, http_client_kwargs=headers)
    error = raised(openai.InternalServerError, lambda: late.run(new_text()))
    assert error.code == "deadline_exceeded"


def bad_input_is_a_bad_request(target: Target) -> None:
    error = raised(openai.BadRequestError, lambda: over_openai(target).run(""))
    assert error.code == "empty_input"


def vectors_of_hugging_face_are_those_of_the_native_route(target: Target) -> None:
    expected = target.vectors(TEXTS)
    for path in ("tei/minilm", "models/minilm"):
        asked = over_hugging_face(target, path=path)
        all_of_them = over_hugging_face(target, path=path, kind=HuggingFaceAPIDocumentEmbedder)

        assert_close(of_documents(all_of_them), expected)
        assert_close(asked.run(TEXTS[0])["embedding"], expected[0])
        assert_close(asyncio.run(asked.run_async(TEXTS[1]))["embedding"], expected[1])
        was_a_miss_and_is_a_hit(target, asked)


def ranker(target: Target, *, key: str = "", retries: int = 1) -> Any:
    """Return a ranker that asks `/rerank` of the host, whatever path its URL has."""
    token = Secret.from_token(key or target.ranking_key)
    return HuggingFaceTEIRanker(url=target.url, token=token, max_retries=retries)


def documents_are_ranked_as_by_the_native_route(target: Target) -> None:
    """The key says which model: it is limited to one that ranks."""
    body = {"model": "minilm", "query": "my PIN", "documents": TEXTS}
    ranked = target.native("/v1/rerank", body)["results"]
    expected = [[TEXTS[one["index"]], one["score"]] for one in ranked]

    found = ranker(target).run(query="my PIN", documents=DOCUMENTS)["documents"]

    assert_close([[one.content, one.score] for one in found], expected)


def a_ranker_with_a_wrong_key_is_refused(target: Target) -> None:
    wrong = {"sk-nobody-has-this-one": "401", target.key: "422", target.narrow_key: "422"}
    for key, status in wrong.items():
        asked = ranker(target, key=key)
        error = raised(RuntimeError, lambda: asked.run(query="a", documents=DOCUMENTS))  # noqa: B023
        assert f"error '{status} " in str(error), error


def refused(status: int, asked: Any, text: str = "a") -> Any:
    error = raised(HfHubHTTPError, lambda: asked.run(text))
    assert error.response.status_code == status, error
    return error


def a_wrong_key_is_refused(target: Target) -> None:
    refused(401, over_hugging_face(target, key="sk-nobody-has-this-one"))
    refused(403, over_hugging_face(target, key=target.narrow_key))


def an_unknown_model_is_refused(target: Target) -> None:
    refused(404, over_hugging_face(target, path="tei/none"))


def over_the_limit_the_client_is_told_when_to_ask_again(target: Target) -> None:
    """It tries nothing again by itself."""
    limited = over_hugging_face(target, key=target.limited_key)
    error = raised(HfHubHTTPError, lambda: [limited.run("a") for _ in range(3)])
    assert error.response.status_code == 429
    threading.Event().wait(float(error.response.headers["retry-after"]))
    assert limited.run("a")["embedding"]


def a_deadline_of_the_server_ends_its_call(target: Target) -> None:
    """It has no timeout of its own, and sends no deadline: the gateway's default is 10 s."""
    asked = over_hugging_face(target, path=f"tei/{target.slow_model}")
    all_of_them = over_hugging_face(
        target, path=f"tei/{target.slow_model}", kind=HuggingFaceAPIDocumentEmbedder
    )
    assert asked.run(new_text())["embedding"]
    documents = [Document(content=new_text()) for _ in range(8)]
    error = raised(HfHubHTTPError, lambda: all_of_them.run(documents))
    assert error.response.status_code == 504


def bad_input_is_refused(target: Target) -> None:
    refused(400, over_hugging_face(target), "")
    refused(422, over_hugging_face(target, path="models/minilm"), "")


def _chat(target: Target) -> object:
    return OpenAIChatGenerator(
        api_key=Secret.from_token(target.key), api_base_url=f"{target.url}/v1", max_retries=0
    ).run([ChatMessage.from_user("a")])


OVER_OPENAI = Client(
    name="haystack-ai (OpenAI embedders)",
    distribution="haystack-ai",
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
        Row.BAD_INPUT: [bad_input_is_a_bad_request],
    },
    error=openai.NotFoundError,
    not_answered={"OpenAIChatGenerator": _chat},
)
OVER_HUGGING_FACE = Client(
    name="huggingface-api-haystack",
    distribution="huggingface-api-haystack",
    rows={
        Row.RESULT: [
            vectors_of_hugging_face_are_those_of_the_native_route,
            documents_are_ranked_as_by_the_native_route,
        ],
        Row.WRONG_KEY: [a_wrong_key_is_refused, a_ranker_with_a_wrong_key_is_refused],
        Row.UNKNOWN_MODEL: [an_unknown_model_is_refused],
        Row.OVER_LIMIT: [over_the_limit_the_client_is_told_when_to_ask_again],
        Row.DEADLINE: [a_deadline_of_the_server_ends_its_call],
        Row.BAD_INPUT: [bad_input_is_refused],
    },
    error=HfHubHTTPError,
    not_answered={
        "HuggingFaceAPIChatGenerator": lambda target: HuggingFaceAPIChatGenerator(
            api_type="text_generation_inference",
            api_params={"url": f"{target.url}/models/minilm"},
            token=Secret.from_token(target.key),
        ).run([ChatMessage.from_user("a")]),
    },
)

if __name__ == "__main__":
    run_checks(OVER_OPENAI, OVER_HUGGING_FACE)
