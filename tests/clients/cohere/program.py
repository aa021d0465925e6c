"""Calls the system with the unmodified `cohere` client, by each method that it answers."""

import asyncio
import base64
import secrets
import struct
from typing import Any

import cohere
from cohere import errors
from cohere.core import ApiError
from cohere.core.request_options import RequestOptions

from tests.clients.checks import Target, assert_close, raised, run_checks

_TEXTS = ["a gorgeous, witty movie", "only labored gags", "how do I reset my PIN?"]
_QUERY = "How do I reset my card PIN?"
_NO_RETRY = RequestOptions(max_retries=0)


def client(target: Target, *, key: str = "") -> Any:
    return cohere.ClientV2(key or target.key, base_url=target.url)


def embedded(target: Target, **fields: Any) -> Any:
    key = fields.pop("key", "")
    body = {"model": "minilm", "texts": _TEXTS, "input_type": "search_query"} | fields
    return client(target, key=key).embed(**{"request_options": _NO_RETRY} | body)


def vectors_are_those_of_the_native_route(target: Target) -> None:
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]

    found = embedded(target, embedding_types=kinds).embeddings

    for kind in kinds[:-1]:
        body = {"model": "minilm", "input": _TEXTS, "output_dtype": kind}
        expected = [each["embedding"] for each in target.native("/v1/embed", body)["results"]]
        assert_close(getattr(found, "float_" if kind == "float" else kind), expected)
    unpacked = [
        list(struct.unpack(f"<{len(packed) // 4}f", packed))
        for packed in map(base64.b64decode, found.base64)
    ]
    assert_close(unpacked, found.float_)


def vectors_can_be_shortened(target: Target) -> None:
    native = target.native("/v1/embed", {"model": "minilm", "input": "a", "dimensions": 64})

    found = embedded(target, texts=["a"], output_dimension=64, truncate="END")

    assert_close(found.embeddings.float_[0], native["results"][0]["embedding"])
    assert found.texts == ["a"]
    assert found.meta.billed_units.input_tokens > 0


def documents_are_ranked_as_by_the_native_route(target: Target) -> None:
    body = {"model": "minilm", "query": _QUERY, "documents": _TEXTS}
    native = target.native("/v1/rerank", body)["results"]

    found = client(target).rerank(**body, top_n=2, max_tokens_per_doc=4096)

    ranked = [[one.index, one.relevance_score] for one in found.results]
    assert_close(ranked, [[one["index"], one["score"]] for one in native[:2]])


def texts_are_classified_as_by_the_native_route(target: Target) -> None:
    native = target.native("/v1/classify", {"model": "sentiment", "input": _TEXTS})["results"]

    found = client(target).classify(model="sentiment", inputs=_TEXTS)

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


def an_answer_is_a_hit_through_the_native_route(target: Target) -> None:
    text = f"never seen before {secrets.token_hex()}"
    embedded(target, texts=[text])

    assert target.native("/v1/embed", {"model": "minilm", "input": text})["usage"]["hit"] == 1


def the_asynchronous_client_is_answered(target: Target) -> None:
    async def ask() -> Any:
        async with cohere.AsyncClientV2(target.key, base_url=target.url) as asynchronous:
            return await asynchronous.embed(
                model="minilm", texts=_TEXTS, input_type="search_query", embedding_types=["float"]
            )

    assert len(asyncio.run(ask()).embeddings.float_) == len(_TEXTS)


def models_are_listed(target: Target) -> None:
    listed = {model.name: model for model in client(target).models.list().models}

    assert listed["minilm"].endpoints == ["embed", "rerank"]
    assert listed["minilm"].context_length > 0


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


def a_deadline_is_an_error_of_the_server(target: Target) -> None:
    late = RequestOptions(max_retries=0, additional_headers={"X-Request-Timeout": "0.0001"})
    texts = [f"{secrets.token_hex()} " + "word " * 200] * 16
    error = refused(target, ApiError, "deadline_exceeded", texts=texts, request_options=late)
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


if __name__ == "__main__":
    run_checks(
        [
            vectors_are_those_of_the_native_route,
            vectors_can_be_shortened,
            documents_are_ranked_as_by_the_native_route,
            texts_are_classified_as_by_the_native_route,
            an_answer_is_a_hit_through_the_native_route,
            the_asynchronous_client_is_answered,
            models_are_listed,
            a_wrong_key_is_an_authentication_error,
            a_key_for_another_model_is_refused,
            an_unknown_model_is_not_found,
            bad_input_is_refused,
            a_deadline_is_an_error_of_the_server,
            over_the_limit_the_clients_own_retry_succeeds,
        ]
    )
