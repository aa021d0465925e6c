"""Calls the system with the unmodified `huggingface_hub` client, by each task that it answers."""

import asyncio
import threading
from functools import partial
from typing import Any

from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError, InferenceTimeoutError

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

_PEOPLE = "Angela Merkel visited Paris."
_LABELS = ["sports", "business"]
_TEMPLATE = "This text is about {}."


def client(target: Target, model: str, *, key: str = "", below: str = "models") -> Any:
    url = f"{target.url}/{below}/{model}"
    return InferenceClient(model=url, token=key or target.key, provider="hf-inference")


def texts_are_classified(target: Target) -> None:
    for text in TEXTS:
        body = {"model": "sentiment", "input": text, "function": "sigmoid"}
        native = target.native("/v1/classify", body)["results"][0]["labels"]

        found = client(target, "sentiment").text_classification(text, function_to_apply="sigmoid")

        assert_close([dict(one) for one in found], native)
    (best,) = client(target, "sentiment").text_classification(TEXTS[0], top_k=1)
    assert best.label == "positive"


def texts_are_classified_by_labels_of_the_caller(target: Target) -> None:
    for several in (False, True):
        body = {"model": "topics", "input": TEXTS[0], "labels": _LABELS, "multi_label": several}
        native = target.native("/v1/zero-shot", body)["results"][0]["labels"]

        found = client(target, "topics").zero_shot_classification(
            TEXTS[0], _LABELS, multi_label=several, hypothesis_template=_TEMPLATE
        )

        assert_close([dict(one) for one in found], native)


def entities_are_found(target: Target) -> None:
    for strategy in ("none", "simple", "first", "average", "max"):
        body = {"model": "entities-demo", "input": _PEOPLE, "aggregation": strategy}
        native = target.native("/v1/entities", body)["results"][0]["entities"]

        found = client(target, "entities-demo").token_classification(
            _PEOPLE, aggregation_strategy=strategy
        )

        assert native, strategy
        for one, expected in zip(found, native, strict=True):
            assert (one.entity_group or one.entity) == expected["label"]
            assert (one.word, one.start, one.end) == tuple(
                expected[name] for name in ("text", "start", "end")
            )
            assert_close(one.score, expected["score"])


def vectors_are_those_of_the_native_route(target: Target) -> None:
    expected = target.vectors(TEXTS)
    for below in ("models", "tei"):
        asked = client(target, "minilm", below=below)

        assert_close(asked.feature_extraction(TEXTS).tolist(), expected)
        one = asked.feature_extraction(TEXTS[0], normalize=True, truncate=True)
        assert_close(one.reshape(-1).tolist(), expected[0])
    found = client(target, "BAAI/minilm").feature_extraction("a", dimensions=64, normalize=False)
    assert_close([found.tolist()], target.vectors(["a"], dimensions=64, normalize=False))


def sentences_are_compared(target: Target) -> None:
    source, *others = target.vectors(TEXTS)
    expected = [sum(a * b for a, b in zip(source, other, strict=True)) for other in others]

    for path in ("minilm", "minilm/pipeline/sentence-similarity"):
        found = client(target, path).sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
        assert_close(found, expected)


def an_answer_is_a_hit_through_the_native_route(target: Target) -> None:
    text = new_text()
    client(target, "minilm").feature_extraction(text)

    assert target.native("/v1/embed", {"model": "minilm", "input": text})["usage"]["hit"] == 1


def the_asynchronous_client_is_answered(target: Target) -> None:
    async def ask() -> Any:
        url = f"{target.url}/models/minilm"
        async with AsyncInferenceClient(model=url, token=target.key) as asynchronous:
            return await asynchronous.feature_extraction(TEXTS)

    assert len(asyncio.run(ask())) == len(TEXTS)


def a_model_is_described(target: Target) -> None:
    for below in ("models", "tei"):
        asked = client(target, "sentiment", below=below)
        assert asked.get_endpoint_info()["model_id"] == "sentiment"
        assert asked.health_check()


def refused(target: Target, status: int, words: str, call: Any) -> Any:
    error = raised(HfHubHTTPError, call)
    assert error.response.status_code == status, error
    assert words in str(error), error
    assert error.response.headers["x-request-id"] in str(error)
    return error


def a_wrong_key_is_refused(target: Target) -> None:
    asked = client(target, "sentiment", key="sk-nobody-has-this-one")
    refused(target, 401, "key", lambda: asked.text_classification("a"))


def a_key_for_another_model_is_refused(target: Target) -> None:
    asked = client(target, "minilm", key=target.narrow_key)
    refused(target, 403, "minilm", lambda: asked.feature_extraction("a"))


def an_unknown_model_is_not_found(target: Target) -> None:
    asked = client(target, "none")
    refused(target, 404, "No model `none`", lambda: asked.text_classification("a"))


def bad_input_is_refused(target: Target) -> None:
    vectors, entities = client(target, "minilm"), client(target, "entities-demo")
    refused(target, 422, "Item 0", lambda: vectors.feature_extraction(""))
    refused(target, 422, "prompt_name", lambda: vectors.feature_extraction("a", prompt_name="q"))
    refused(target, 400, "stride", lambda: entities.token_classification("a", stride=1))
    refused(target, 400, "minilm", lambda: vectors.zero_shot_classification("a", ["b"]))


def the_clients_own_timeout_ends_its_call(target: Target) -> None:
    url = f"{target.url}/models/{target.slow_model}"
    asked = InferenceClient(model=url, token=target.key, timeout=0.5)
    raised(InferenceTimeoutError, lambda: asked.feature_extraction(new_text()))


def a_deadline_of_the_server_is_its_error(target: Target) -> None:
    for model, seconds in ((target.slow_model, "0.5"), ("minilm", "0.0001")):
        url, late = f"{target.url}/models/{model}", {"X-Request-Timeout": seconds}
        asked = InferenceClient(model=url, token=target.key, headers=late)
        texts = [f"{new_text()} " + "word " * 200] * 16
        refused(target, 504, "deadline", partial(asked.feature_extraction, texts))


def over_the_limit_the_client_is_told_when_to_ask_again(target: Target) -> None:
    """It tries nothing again by itself."""
    limited = client(target, "minilm", key=target.limited_key)

    def ask_often() -> None:
        for _ in range(3):
            limited.feature_extraction("a")

    error = raised(HfHubHTTPError, ask_often)
    assert error.response.status_code == 429
    assert "`burst`" in str(error), error
    threading.Event().wait(float(error.response.headers["retry-after"]))
    assert len(limited.feature_extraction("a"))


def other_task(target: Target, task: str) -> Any:
    return client(target, f"minilm/pipeline/{task}")


HUGGING_FACE = Client(
    name="huggingface_hub (InferenceClient)",
    distribution="huggingface_hub",
    rows={
        Row.RESULT: [
            texts_are_classified,
            texts_are_classified_by_labels_of_the_caller,
            entities_are_found,
            vectors_are_those_of_the_native_route,
            sentences_are_compared,
            an_answer_is_a_hit_through_the_native_route,
            the_asynchronous_client_is_answered,
            a_model_is_described,
        ],
        Row.WRONG_KEY: [a_wrong_key_is_refused, a_key_for_another_model_is_refused],
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
        # A model's URL answers by the model's own task whatever a client means by a text: the
        # path says it.
        "fill_mask": lambda target: other_task(target, "fill-mask").fill_mask("a [MASK]"),
        "summarization": lambda target: other_task(target, "summarization").summarization("a"),
        "text_generation": lambda target: other_task(target, "text-generation").text_generation(
            "a"
        ),
        "translation": lambda target: other_task(target, "translation").translation("a"),
        "question_answering": lambda target: client(target, "minilm").question_answering(
            question="a", context="b"
        ),
        "chat_completion": lambda target: client(target, "minilm").chat_completion(
            [{"role": "user", "content": "a"}]
        ),
        "image_classification": lambda target: client(target, "minilm").image_classification(b"a"),
    },
)

if __name__ == "__main__":
    run_checks(HUGGING_FACE)
