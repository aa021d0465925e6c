"""Calls the system with the unmodified `huggingface_hub` client, by each task that it answers."""

import asyncio
import secrets
import threading
from typing import Any

from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.clients.checks import Target, assert_close, raised, run_checks

_TEXTS = ["a gorgeous, witty movie", "only labored gags", "how do I reset my PIN?"]
_PEOPLE = "Angela Merkel visited Paris."
_LABELS = ["sports", "business"]
_TEMPLATE = "This text is about {}."


def client(target: Target, model: str, *, key: str = "", below: str = "models") -> Any:
    url = f"{target.url}/{below}/{model}"
    return InferenceClient(model=url, token=key or target.key, provider="hf-inference")


def texts_are_classified(target: Target) -> None:
    for text in _TEXTS:
        body = {"model": "sentiment", "input": text, "function": "sigmoid"}
        native = target.native("/v1/classify", body)["results"][0]["labels"]

        found = client(target, "sentiment").text_classification(text, function_to_apply="sigmoid")

        assert_close([dict(one) for one in found], native)
    (best,) = client(target, "sentiment").text_classification(_TEXTS[0], top_k=1)
    assert best.label == "positive"


def texts_are_classified_by_labels_of_the_caller(target: Target) -> None:
    for several in (False, True):
        body = {"model": "topics", "input": _TEXTS[0], "labels": _LABELS, "multi_label": several}
        native = target.native("/v1/zero-shot", body)["results"][0]["labels"]

        found = client(target, "topics").zero_shot_classification(
            _TEXTS[0], _LABELS, multi_label=several, hypothesis_template=_TEMPLATE
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
    native = target.native("/v1/embed", {"model": "minilm", "input": _TEXTS})["results"]
    expected = [each["embedding"] for each in native]
    for below in ("models", "tei"):
        asked = client(target, "minilm", below=below)

        assert_close(asked.feature_extraction(_TEXTS).tolist(), expected)
        one = asked.feature_extraction(_TEXTS[0], normalize=True, truncate=True)
        assert_close(one.reshape(-1).tolist(), expected[0])
    body = {"model": "minilm", "input": "a", "dimensions": 64, "normalize": False}
    (shorter,) = target.native("/v1/embed", body)["results"]
    found = client(target, "BAAI/minilm").feature_extraction("a", dimensions=64, normalize=False)
    assert_close(found.tolist(), shorter["embedding"])


def sentences_are_compared(target: Target) -> None:
    native = target.native("/v1/embed", {"model": "minilm", "input": _TEXTS})["results"]
    source, *others = [each["embedding"] for each in native]
    expected = [sum(a * b for a, b in zip(source, other, strict=True)) for other in others]

    for path in ("minilm", "minilm/pipeline/sentence-similarity"):
        found = client(target, path).sentence_similarity(_TEXTS[0], other_sentences=_TEXTS[1:])
        assert_close(found, expected)


def an_answer_is_a_hit_through_the_native_route(target: Target) -> None:
    text = f"never seen before {secrets.token_hex()}"
    client(target, "minilm").feature_extraction(text)

    assert target.native("/v1/embed", {"model": "minilm", "input": text})["usage"]["hit"] == 1


def the_asynchronous_client_is_answered(target: Target) -> None:
    async def ask() -> Any:
        url = f"{target.url}/models/minilm"
        async with AsyncInferenceClient(model=url, token=target.key) as asynchronous:
            return await asynchronous.feature_extraction(_TEXTS)

    assert len(asyncio.run(ask())) == len(_TEXTS)


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
    refused(target, 400, "prompt_name", lambda: vectors.feature_extraction("a", prompt_name="q"))
    refused(target, 400, "stride", lambda: entities.token_classification("a", stride=1))
    refused(target, 400, "minilm", lambda: vectors.zero_shot_classification("a", ["b"]))


def a_deadline_is_an_error_of_the_server(target: Target) -> None:
    url = f"{target.url}/models/minilm"
    late = InferenceClient(model=url, token=target.key, headers={"X-Request-Timeout": "0.0001"})
    texts = [f"{secrets.token_hex()} " + "word " * 200] * 16
    refused(target, 504, "deadline", lambda: late.feature_extraction(texts))


def over_the_limit_the_client_is_told_when_to_ask_again(target: Target) -> None:
    """The client tries nothing again by itself."""
    limited = client(target, "minilm", key=target.limited_key)

    def ask_often() -> None:
        for _ in range(3):
            limited.feature_extraction("a")

    error = raised(HfHubHTTPError, ask_often)
    assert error.response.status_code == 429
    assert "`burst` of requests is used up; wait as `Retry-After` says" in str(error), error
    threading.Event().wait(float(error.response.headers["retry-after"]))
    assert len(limited.feature_extraction("a"))


if __name__ == "__main__":
    run_checks(
        [
            texts_are_classified,
            texts_are_classified_by_labels_of_the_caller,
            entities_are_found,
            vectors_are_those_of_the_native_route,
            sentences_are_compared,
            an_answer_is_a_hit_through_the_native_route,
            the_asynchronous_client_is_answered,
            a_model_is_described,
            a_wrong_key_is_refused,
            a_key_for_another_model_is_refused,
            an_unknown_model_is_not_found,
            bad_input_is_refused,
            a_deadline_is_an_error_of_the_server,
            over_the_limit_the_client_is_told_when_to_ask_again,
        ]
    )
