"""Calls the system with the unmodified `kserve` clients, by each method that it answers."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.errors import UnsupportedProtocol
from kserve.protocol.infer_type import RequestedOutput

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
from tests.clients.kserve.grpc_checks import KSERVE_GRPC


def ask(call: Callable[[Any], Awaitable[Any]], **options: Any) -> Any:
    """Return what `call` returns of a client."""

    async def asked() -> Any:
        async with InferenceRESTClient(RESTConfig(protocol="v2", **options)) as client:
            return await call(client)

    return asyncio.run(asked())


def headers(target: Target, key: str = "", **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key or target.key}"} | more


def request(
    texts: Sequence[str], *, is_binary: bool = False, name: str = "TEXT", **fields: Any
) -> Any:
    tensor = InferInput(name=name, shape=[len(texts), 1], datatype="BYTES")
    values = np.array([each.encode() for each in texts], dtype=np.object_).reshape(-1, 1)
    tensor.set_data_from_numpy(values, binary_data=is_binary)
    return InferRequest(model_name="minilm", infer_inputs=[tensor], **fields)


def infer(target: Target, sent: Any, *, model: str = "minilm", **options: Any) -> Any:
    key, own = options.pop("key", ""), options.pop("own", {})
    told = options.pop("headers", headers(target, key))
    return ask(
        lambda client: client.infer(target.url, sent, model_name=model, headers=dict(told)), **own
    )


def vectors_of(answer: Any) -> Any:
    (output,) = answer.outputs
    assert (output.name, output.datatype) == ("EMBEDDING", "FP32")
    return output.as_numpy().tolist()


def server_and_models_are_live_and_ready(target: Target) -> None:
    sent = headers(target)

    assert ask(lambda client: client.is_server_live(target.url)) is True
    assert ask(lambda client: client.is_server_ready(target.url)) is True
    assert ask(lambda client: client.is_model_ready(target.url, "minilm", headers=sent))
    assert not ask(lambda client: client.is_model_ready(target.url, "none", headers=sent))


def vectors_are_those_of_the_native_route(target: Target) -> None:
    expected = [[float(np.float32(one)) for one in each] for each in target.vectors(TEXTS)]
    outputs = [RequestedOutput(name="EMBEDDING", parameters={"binary_data": True})]
    for is_binary in (False, True):
        for fields in ({}, {"request_outputs": outputs}, {"request_id": "42"}):
            found = infer(target, request(TEXTS, is_binary=is_binary, **fields))

            assert_close(vectors_of(found), expected)
            assert found.model_name == "minilm"
            assert found.id == fields.get("request_id", found.id)
            assert found.id
    body = {"inputs": [{"name": "TEXT", "shape": [3], "datatype": "BYTES", "data": TEXTS}]}
    assert_close(vectors_of(infer(target, body)), expected)


def an_answer_is_a_hit_through_the_native_route(target: Target) -> None:
    text = new_text()
    infer(target, request([text]))

    assert target.native("/v1/embed", {"model": "minilm", "input": text})["usage"]["hit"] == 1


def refused(target: Target, status: int, named: str, sent: Any, **options: Any) -> Any:
    error = raised(httpx.HTTPStatusError, lambda: infer(target, sent, **options))
    assert error.response.status_code == status, error
    assert named in str(error), error
    assert error.response.headers["x-request-id"].startswith("req_")
    return error


def a_wrong_key_is_an_authentication_error(target: Target) -> None:
    refused(target, 401, "key", request(["a"]), key="sk-nobody-has-this-one")
    refused(target, 403, "minilm", request(["a"]), key=target.narrow_key)


def an_unknown_model_is_not_found(target: Target) -> None:
    refused(target, 404, "none", request(["a"]), model="none")


def bad_input_is_refused_by_name(target: Target) -> None:
    refused(target, 422, "empty", request([""]))
    refused(target, 400, "`NAME`", request(["a"], name="NAME"))
    refused(target, 400, "temperature", request(["a"], parameters={"temperature": 1}))


def over_the_limit_its_error_says_when_to_ask_again(target: Target) -> None:
    def ask_often() -> None:
        for _ in range(3):
            infer(target, request(["a"]), key=target.limited_key)

    error = raised(httpx.HTTPStatusError, ask_often)
    assert error.response.status_code == 429
    threading.Event().wait(float(error.response.headers["retry-after-ms"]) / 1000)
    assert vectors_of(infer(target, request(["a"]), key=target.limited_key))


def the_clients_own_timeout_ends_its_call(target: Target) -> None:
    sent = request([new_text()])
    asked = lambda: infer(target, sent, model=target.slow_model, own={"timeout": 1.0})  # noqa: E731
    raised(httpx.TimeoutException, asked)


def a_deadline_of_the_server_is_its_error(target: Target) -> None:
    for model, seconds in ((target.slow_model, "0.5"), ("minilm", "0.0001")):
        late = headers(target) | {"X-Request-Timeout": seconds}
        sent = request([f"{new_text()} " + "word " * 200] * 16)
        refused(target, 504, "deadline", sent, model=model, headers=late)


KSERVE = Client(
    name="kserve (InferenceRESTClient)",
    distribution="kserve",
    rows={
        Row.RESULT: [
            server_and_models_are_live_and_ready,
            vectors_are_those_of_the_native_route,
            an_answer_is_a_hit_through_the_native_route,
        ],
        Row.WRONG_KEY: [a_wrong_key_is_an_authentication_error],
        Row.UNKNOWN_MODEL: [an_unknown_model_is_not_found],
        Row.OVER_LIMIT: [over_the_limit_its_error_says_when_to_ask_again],
        Row.DEADLINE: [
            the_clients_own_timeout_ends_its_call,
            a_deadline_of_the_server_is_its_error,
        ],
        Row.BAD_INPUT: [bad_input_is_refused_by_name],
    },
    error=(httpx.HTTPStatusError, UnsupportedProtocol),
    not_answered={
        "explain": lambda target: ask(
            lambda client: client.explain(target.url, "minilm", {}, headers=headers(target))
        ),
    },
)

if __name__ == "__main__":
    run_checks(KSERVE, KSERVE_GRPC)
