"""Calls the system with the unmodified `cohere` client, by each method that it answers."""

import asyncio
import base64
import struct
from typing import Any

import cohere
import httpx
from cohere import errors
from cohere.core import ApiError
from cohere.core.request_options import RequestOptions

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

_QUERY = "How do I reset my card PIN?"
_NO_RETRY = RequestOptions(max_retries=0)


def client(target: Target, *, key: str = "") -> Any:
    return cohere.ClientV2(key or target.key, base_url=target.url)


def embedded(target: Target, **fields: Any) -> Any:
    key = fields.pop("key", "")
    body = {"model": "minilm", "texts": TEXTS, "input_type": "search_query"} | fields
    return client(target, key=key).embed(**{"request_options": _NO_RETRY} | body)


def vectors_are_those_of_the_native_route(target: Target) -> None:
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]

    found = embedded(target, embedding_types=kinds).embeddings

    for kind in kinds[:-1]:
        expected = target.vectors(TEXTS, output_dtype=kind)
        assert_close(getattr(found, "float_" if kind == "float" else kind), expected)
    unpacked = [
        list(struct.unpack(f"<{len(packed) // 4}f", packed))
        for packed in map(base64.b64decode, found.base64)
    ]
    assert_close(unpacked, found.float_)


def vectors_can_be_shortened(target: Target) -> None:
    found = embedded(target, texts=["a"], output_dimension=64, truncate="END")

    assert_close(found.embeddings.float_, target.vectors(["a"], dimensions=64))
    assert found.texts == ["a"]
    assert found.meta.billed_units.input_tokens > 0


def documents_are_ranked_as_by_the_native_route(target: Target) -> None:
    body = {"model": "minilm", "query": _QUERY, "documents": TEXTS}
    native = target.native("/v1/rerank", body)["results"]

    found = client(target).rerank(**body, top_n=2, max_tokens_per_doc=4096)

    ranked = [[one.index, one.relevance_score] for one in found.results]
    assert_close(ranked, [[one["index"], one["score"]] for one in native[:2]])


def texts_are_classified_as_by_the_native_route(target: Target) -> None:
    native = target.native("/v1/classify", {"model": "sentiment", "input": TEXTS})["results"]

    found = client(target).classify(model="sentiment", inputs=TEXTS)

    for one, expected in zip(found.classifications, native, strict=True):
        best = expected["labels"][0]
        assert one.prediction == best["label"]
        assert_close(one.confidence, best["score"])
        scores = {label: each.confidence for label, each in one.labels.items()}
        assert_close(
            sorted(scores.values(), reverse=True), [e["score"] for e in expected["labels"]]
        )
    examples = [cohere.ClassifyExample(text="a", label="b")]
    refused = lambda: client(target).classify(  # noqa: E731
        model="sentiment", inputs=["a"], examples=examples
    )
    assert "zero-shot" in str(raised(errors.BadRequestError, refused).body)


def tokens_are_those_of_the_native_route(target: Target) -> None:
    body = {"model": "minilm", "input": _QUERY, "add_special_tokens": False}
    (native,) = target.native("/v1/tokenize", body)["results"]

    # By default it looks for a tokenizer to download first, and finds none.
    for offline in (False, True):
        found = client(target).tokenize(text=_QUERY, model="minilm", offline=offline)
        text = client(target).detokenize(tokens=found.tokens, model="minilm", offline=offline)

        assert (found.tokens, found.token_strings) == (native["ids"], native["tokens"])
        assert text.text == _QUERY.lower()


def an_answer_is_a_hit_through_the_native_route(target: Target) -> None:
    text = new_text()
    embedded(target, texts=[text])

    assert target.native("/v1/embed", {"model": "minilm", "input": text})["usage"]["hit"] == 1


def the_asynchronous_client_is_answered(target: Target) -> None:
    async def ask() -> Any:
        async with cohere.AsyncClientV2(target.key, base_url=target.url) as asynchronous:
            return await asynchronous.embed(
                model="minilm", texts=TEXTS, input_type="search_query", embedding_types=["float"]
            )

    assert len(asyncio.run(ask()).embeddings.float_) == len(TEXTS)


def models_are_listed(target: Target) -> None:
    listed = {model.name: model for model in client(target).models.list().models}

    assert listed["minilm"].endpoints == ["embed", "rerank"]
    assert listed["minilm"].context_length > 0
    assert client(target).models.get("minilm").name == "minilm"


def refused(target: Target, kind: Any, code: str, **fields: Any) -> Any:
    error = raised(kind, lambda: embedded(target, **fields))
    assert error.body["code"] == code, error.body
    assert error.body["message"]
    assert error.body["id"] == error.headers["x-request-id"]
    return error


def a_wrong_key_is_an_authentication_error(target: Target) -> None:
    refused(target, errors.UnauthorizedError, "authentication_failed", key="sk-nobody-has-it")


def a_key_for_another_model_is_refused(target: Target) -> None:
    refused(target, errors.ForbiddenError, "permission_denied", key=target.narrow_key)


def an_unknown_model_is_not_found(target: Target) -> None:
    refused(target, errors.NotFoundError, "model_not_found", model="none")


def bad_input_is_refused(target: Target) -> None:
    refused(target, errors.UnprocessableEntityError, "invalid_item", texts=[""])
    refused(target, errors.BadRequestError, "invalid_request", texts=[])
    refused(target, errors.BadRequestError, "invalid_request", truncate="START")


def the_clients_own_timeout_ends_its_call(target: Target) -> None:
    soon = RequestOptions(max_retries=0, timeout_in_seconds=1)
    asked = {"model": target.slow_model, "texts": [new_text()], "request_options": soon}
    raised(httpx.TimeoutException, lambda: embedded(target, **asked))


def asked_again_after_a_timeout_the_work_is_found_done(target: Target) -> None:
    """It tries nothing again by itself after a timeout."""
    text = new_text()
    soon = RequestOptions(max_retries=6, timeout_in_seconds=1)
    asked = {"model": target.slow_model, "texts": [text]}
    raised(httpx.TimeoutException, lambda: embedded(target, **asked, request_options=soon))
    assert embedded(target, **asked).embeddings.float_


def a_deadline_of_the_server_is_its_error(target: Target) -> None:
    for model, seconds in ((target.slow_model, "0.5"), ("minilm", "0.0001")):
        late = RequestOptions(max_retries=0, additional_headers={"X-Request-Timeout": seconds})
        asked = {"model": model, "texts": [f"{new_text()} " + "word " * 200] * 16}
        error = refused(target, ApiError, "deadline_exceeded", request_options=late, **asked)
        assert error.status_code == 504


def over_the_limit_the_clients_own_retry_succeeds(target: Target) -> None:
    def ask_often() -> None:
        for _ in range(3):
            embedded(target, key=target.limited_key, texts=["a"])

    error = raised(errors.TooManyRequestsError, ask_often)
    assert float(error.headers["retry-after-ms"]) > 0
    patient = RequestOptions(max_retries=4)
    found = embedded(target, key=target.limited_key, texts=["a"], request_options=patient)
    assert found.embeddings.float_


def _chat(target: Target) -> object:
    return client(target).chat(model="m", messages=[{"role": "user", "content": "a"}])


COHERE = Client(
    name="cohere (ClientV2)",
    distribution="cohere",
    rows={
        Row.RESULT: [
            vectors_are_those_of_the_native_route,
            vectors_can_be_shortened,
            documents_are_ranked_as_by_the_native_route,
            texts_are_classified_as_by_the_native_route,
            tokens_are_those_of_the_native_route,
            an_answer_is_a_hit_through_the_native_route,
            the_asynchronous_client_is_answered,
            models_are_listed,
        ],
        Row.WRONG_KEY: [
            a_wrong_key_is_an_authentication_error,
            a_key_for_another_model_is_refused,
        ],
        Row.UNKNOWN_MODEL: [an_unknown_model_is_not_found],
        Row.OVER_LIMIT: [over_the_limit_the_clients_own_retry_succeeds],
        Row.DEADLINE: [
            the_clients_own_timeout_ends_its_call,
            asked_again_after_a_timeout_the_work_is_found_done,
            a_deadline_of_the_server_is_its_error,
        ],
        Row.BAD_INPUT: [bad_input_is_refused],
    },
    error=ApiError,
    not_answered={
        "chat": _chat,
        "datasets": lambda target: client(target).datasets.list(),
        "embed_jobs": lambda target: client(target).embed_jobs.list(),
        "batches": lambda target: client(target).batches.list(),
    },
)

if __name__ == "__main__":
    run_checks(COHERE)
