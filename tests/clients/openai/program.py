"""Calls the system with the unmodified `openai` client, by each method that it answers."""

import asyncio
import json
import threading
from typing import Any

import openai

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


def client(target: Target, *, key: str = "", retries: int = 0, timeout: float = 60.0) -> Any:
    return openai.OpenAI(
        base_url=f"{target.url}/v1",
        api_key=key or target.key,
        max_retries=retries,
        timeout=timeout,
    )


def vectors_are_those_of_the_native_route(target: Target) -> None:
    expected = target.vectors(TEXTS)
    for more in ({}, {"encoding_format": "float"}):
        found = client(target).embeddings.create(model="minilm", input=TEXTS, **more)

        assert_close([each.embedding for each in found.data], expected)
        assert [each.index for each in found.data] == [0, 1, 2]
        assert found.model == "minilm"


def vectors_can_be_shortened(target: Target) -> None:
    found = client(target).embeddings.create(model="minilm", input="a", dimensions=64)

    assert_close([found.data[0].embedding], target.vectors(["a"], dimensions=64))


def an_answer_is_a_hit_with_the_same_tokens(target: Target) -> None:
    raw = client(target).embeddings.with_raw_response
    text = new_text()
    answers = [raw.create(model="minilm", input=text) for _ in range(3)]

    tokens = {answer.parse().usage.prompt_tokens for answer in answers}
    assert len(tokens) == 1, tokens
    assert tokens.pop() > 4
    assert "hit" in answers[-1].headers["cache-status"]
    again = target.native("/v1/embed", {"model": "minilm", "input": text})
    assert again["usage"]["hit"] == 1


def the_asynchronous_client_is_answered(target: Target) -> None:
    async def ask() -> Any:
        async with openai.AsyncOpenAI(
            base_url=f"{target.url}/v1", api_key=target.key
        ) as asynchronous:
            return await asynchronous.embeddings.create(model="minilm", input=TEXTS)

    assert len(asyncio.run(ask()).data) == len(TEXTS)


def texts_are_moderated(target: Target) -> None:
    native = target.native("/v1/classify", {"model": "sentiment", "input": TEXTS})
    scores = [{one["label"]: one["score"] for one in each["labels"]} for each in native["results"]]
    for asked in (TEXTS, [{"type": "text", "text": text} for text in TEXTS]):
        found = client(target).moderations.create(model="sentiment", input=asked)

        assert found.id.startswith("modr-")
        for result, expected in zip(found.results, scores, strict=True):
            score = result.category_scores.model_extra["negative"]
            assert_close(score, expected["negative"])
            assert result.flagged == (score >= 0.5)
    missing = lambda: client(target).moderations.create(model="topics", input="a")  # noqa: E731
    assert raised(openai.BadRequestError, missing).code == "invalid_request"


def models_are_listed(target: Target) -> None:
    listed = client(target).models.list().data

    assert "minilm" in [model.id for model in listed]
    one = client(target).models.retrieve("minilm")
    assert (one.id, one.object, one.owned_by) == ("minilm", "model", "sluicegate")


def refused(target: Target, kind: Any, code: str, **fields: Any) -> Any:
    key = fields.pop("key", "")
    body = {"model": "minilm", "input": "a"} | fields
    error = raised(kind, lambda: client(target, key=key).embeddings.create(**body))
    assert error.code == code, error.code
    assert error.request_id.startswith("req_")
    assert error.message.startswith(f"Error code: {error.status_code}")
    return error


def a_wrong_key_is_an_authentication_error(target: Target) -> None:
    refused(target, openai.AuthenticationError, "invalid_api_key", key="sk-nobody-has-this-one")


def a_key_for_another_model_is_a_permission_error(target: Target) -> None:
    refused(target, openai.PermissionDeniedError, "permission_denied", key=target.narrow_key)


def an_unknown_model_is_not_found(target: Target) -> None:
    error = refused(target, openai.NotFoundError, "model_not_found", model="none")
    assert error.param == "model"
    other = raised(openai.NotFoundError, lambda: client(target).models.retrieve("none"))
    assert other.code == "model_not_found"
    assert "none" in other.message


def bad_input_is_a_bad_request(target: Target) -> None:
    refused(target, openai.BadRequestError, "empty_input", input="")
    refused(target, openai.BadRequestError, "invalid_request", input=[1, 2])
    refused(target, openai.BadRequestError, "bad_dimensions", dimensions=100_000)
    refused(target, openai.BadRequestError, "invalid_request", extra_body={"unknown": 1})


def the_clients_own_timeout_ends_its_call(target: Target) -> None:
    asked = client(target, timeout=0.5).embeddings
    ask = lambda: asked.create(model=target.slow_model, input=new_text())  # noqa: E731
    raised(openai.APITimeoutError, ask)


def its_own_retry_after_a_timeout_finds_the_work_done(target: Target) -> None:
    patient = client(target, timeout=1.0, retries=6).embeddings
    assert patient.create(model=target.slow_model, input=new_text()).data[0].embedding


def a_deadline_of_the_server_is_its_error(target: Target) -> None:
    for model, seconds in ((target.slow_model, "0.5"), ("minilm", "0.0001")):
        late = {"extra_headers": {"X-Request-Timeout": seconds}, "model": model}
        texts = [f"{new_text()} " + "word " * 200] * 16
        refused(target, openai.InternalServerError, "deadline_exceeded", input=texts, **late)


def over_the_limit_the_clients_own_retry_succeeds(target: Target) -> None:
    limited = client(target, key=target.limited_key)

    def ask_often() -> None:
        for _ in range(3):
            limited.embeddings.create(model="minilm", input="a")

    error = raised(openai.RateLimitError, ask_often)
    assert error.code == "rate_limit_exceeded"
    assert float(error.response.headers["retry-after-ms"]) > 0
    patient = client(target, key=target.limited_key, retries=4)
    assert patient.embeddings.create(model="minilm", input="a").data


def _ended(target: Target, batch: str) -> Any:
    """Return a batch once it has ended."""
    for _ in range(600):
        found = client(target).batches.retrieve(batch)
        if found.status in ("completed", "failed", "expired", "cancelled"):
            return found
        threading.Event().wait(0.1)
    raise AssertionError("the batch has not ended")


def a_batch_is_run_and_its_answers_are_those_of_the_route(target: Target) -> None:
    lines = [
        {"custom_id": text, "method": "POST", "url": "/v1/embeddings", "body": body}
        for text in TEXTS
        for body in [{"model": "minilm", "input": text, "encoding_format": "float"}]
    ]
    content = "\n".join(map(json.dumps, [*lines, lines[0]]))
    api = client(target)
    life: Any = {"anchor": "created_at", "seconds": 3600}
    file = api.files.create(file=("a.jsonl", content.encode()), purpose="batch", expires_after=life)
    batch = api.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
    )
    ended = _ended(target, batch.id)

    assert (ended.status, ended.request_counts.completed) == ("completed", 3), ended
    answers = map(json.loads, api.files.content(ended.output_file_id).text.splitlines())
    found = {one["custom_id"]: one["response"]["body"]["data"][0]["embedding"] for one in answers}
    assert_close([found[text] for text in TEXTS], target.vectors(TEXTS))
    (error,) = map(json.loads, api.files.content(ended.error_file_id).text.splitlines())
    assert (error["error"]["code"], error["error"]["line"]) == ("duplicate_custom_id", 4)
    assert batch.id in [one.id for one in api.batches.list(limit=1)]
    assert file.id in [one.id for one in api.files.list(limit=1)]
    conflict = raised(openai.ConflictError, lambda: api.batches.cancel(batch.id))
    assert conflict.code == "conflict"
    assert api.files.delete(ended.output_file_id).deleted
    missing = raised(openai.NotFoundError, lambda: api.files.content(ended.output_file_id))
    assert missing.code == "not_found"


def a_batch_can_be_cancelled(target: Target) -> None:
    api = client(target)
    line = {"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": {}}
    file = api.files.create(file=json.dumps(line).encode(), purpose="batch")
    batch = api.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
    )

    assert api.batches.cancel(batch.id).status == "cancelling"

    assert _ended(target, batch.id).status == "cancelled"


def _chat(target: Target) -> object:
    return client(target).chat.completions.create(
        model="minilm", messages=[{"role": "user", "content": "a"}]
    )


OPENAI = Client(
    name="openai",
    distribution="openai",
    rows={
        Row.RESULT: [
            vectors_are_those_of_the_native_route,
            vectors_can_be_shortened,
            an_answer_is_a_hit_with_the_same_tokens,
            the_asynchronous_client_is_answered,
            texts_are_moderated,
            models_are_listed,
            a_batch_is_run_and_its_answers_are_those_of_the_route,
            a_batch_can_be_cancelled,
        ],
        Row.WRONG_KEY: [
            a_wrong_key_is_an_authentication_error,
            a_key_for_another_model_is_a_permission_error,
        ],
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
    not_answered={
        "chat.completions": _chat,
        "completions": lambda target: client(target).completions.create(model="m", prompt="a"),
        "responses": lambda target: client(target).responses.create(model="m", input="a"),
        "images": lambda target: client(target).images.generate(model="m", prompt="a"),
        "audio.speech": lambda target: client(target).audio.speech.create(
            model="m", input="a", voice="alloy"
        ),
        "fine_tuning.jobs": lambda target: client(target).fine_tuning.jobs.list(),
        "vector_stores": lambda target: client(target).vector_stores.list(),
    },
)

if __name__ == "__main__":
    run_checks(OPENAI)
