"""Has the checks of kserve's `InferenceGRPCClient`."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest

from tests.clients.checks import TEXTS, Client, Row, Target, assert_close, new_text, raised

logging.disable(logging.ERROR)  # it logs every error that it raises


def ask(target: Target, call: Callable[[Any], Awaitable[Any]]) -> Any:
    async def asked() -> Any:
        async with InferenceGRPCClient(target.grpc, retries=0) as client:
            return await call(client)

    return asyncio.run(asked())


def infer(
    target: Target,
    texts: Sequence[str],
    *,
    model: str = "minilm",
    name: str = "TEXT",
    key: str = "",
    as_array: bool = False,
    timeout: float = 60.0,
    **headers: str,
) -> Any:
    tensor = InferInput(name, [len(texts), 1], "BYTES", data=list(texts))
    if as_array:
        tensor = InferInput(name, [len(texts), 1], "BYTES")
        values = np.array([[text.encode()] for text in texts], dtype=np.object_)
        tensor.set_data_from_numpy(values, binary_data=True)
    request = InferRequest(model_name=model, infer_inputs=[tensor])
    sent = [("authorization", f"Bearer {key or target.key}"), *headers.items()]
    return ask(target, lambda api: api.infer(request, timeout=timeout, headers=sent))


def vectors(answer: Any) -> Any:
    (output,) = answer.outputs
    assert output.name == "EMBEDDING"
    return output.as_numpy().tolist()


def server_and_models_are_live_and_ready(target: Target) -> None:
    sent = (("authorization", f"Bearer {target.key}"),)

    assert ask(target, lambda api: api.is_server_live())
    assert ask(target, lambda api: api.is_server_ready())
    assert ask(target, lambda api: api.is_model_ready("minilm", headers=sent))
    assert not ask(target, lambda api: api.is_model_ready("none", headers=sent))


def vectors_are_those_of_the_native_route(target: Target) -> None:
    expected = [[float(np.float32(one)) for one in each] for each in target.vectors(TEXTS)]

    for as_array in (False, True):
        assert_close(vectors(infer(target, TEXTS, as_array=as_array)), expected)


def an_answer_is_a_hit_through_the_native_route(target: Target) -> None:
    text = new_text()
    infer(target, [text])

    assert target.native("/v1/embed", {"model": "minilm", "input": text})["usage"]["hit"] == 1


def refused(target: Target, code: grpc.StatusCode, named: str, **options: Any) -> None:
    error = raised(grpc.aio.AioRpcError, lambda: infer(target, **{"texts": ["a"]} | options))
    assert error.code() is code, error
    assert named in error.details(), error


def a_wrong_key_is_an_authentication_error(target: Target) -> None:
    refused(target, grpc.StatusCode.UNAUTHENTICATED, "key", key="sk-nobody-has-this-one")
    refused(target, grpc.StatusCode.PERMISSION_DENIED, "minilm", key=target.narrow_key)


def an_unknown_model_is_not_found(target: Target) -> None:
    refused(target, grpc.StatusCode.NOT_FOUND, "none", model="none")


def over_the_limit_its_error_says_when_to_come_back(target: Target) -> None:
    def ask_often() -> None:
        for _ in range(3):
            infer(target, ["a"], key=target.limited_key)

    error = raised(grpc.aio.AioRpcError, ask_often)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    threading.Event().wait(float(dict(error.trailing_metadata())["retry-after"]) + 0.1)
    assert vectors(infer(target, ["a"], key=target.limited_key))


def the_clients_own_timeout_ends_its_call(target: Target) -> None:
    slow = {"texts": [new_text()], "model": target.slow_model}
    refused(target, grpc.StatusCode.DEADLINE_EXCEEDED, "", timeout=0.5, **slow)


def a_deadline_of_the_server_is_its_error(target: Target) -> None:
    slow = {"texts": [new_text()], "model": target.slow_model, "x-request-timeout": "0.5"}
    refused(target, grpc.StatusCode.DEADLINE_EXCEEDED, "deadline", **slow)


def bad_input_is_refused_by_name(target: Target) -> None:
    refused(target, grpc.StatusCode.INVALID_ARGUMENT, "empty", texts=[""])
    refused(target, grpc.StatusCode.INVALID_ARGUMENT, "`NAME`", name="NAME")


KSERVE_GRPC = Client(
    name="kserve (grpc)",
    distribution="kserve",
    rows={
        Row.RESULT: [
            server_and_models_are_live_and_ready,
            vectors_are_those_of_the_native_route,
            an_answer_is_a_hit_through_the_native_route,
        ],
        Row.WRONG_KEY: [a_wrong_key_is_an_authentication_error],
        Row.UNKNOWN_MODEL: [an_unknown_model_is_not_found],
        Row.OVER_LIMIT: [over_the_limit_its_error_says_when_to_come_back],
        Row.DEADLINE: [
            the_clients_own_timeout_ends_its_call,
            a_deadline_of_the_server_is_its_error,
        ],
        Row.BAD_INPUT: [bad_input_is_refused_by_name],
    },
    error=grpc.aio.AioRpcError,
)
