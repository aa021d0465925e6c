"""Has the checks of `tritonclient.grpc`."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.clients.checks import TEXTS, Client, Row, Target, assert_close, new_text, raised

_LATE = 30.0


def client(target: Target, **options: Any) -> Any:
    return triton.InferenceServerClient(target.grpc, **options)


def headers(target: Target, key: str = "", **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key or target.key}"} | more


def tensor(elements: Sequence[str], name: str = "TEXT") -> Any:
    values = np.array([each.encode() for each in elements], dtype=np.object_).reshape(-1, 1)
    found = triton.InferInput(name, values.shape, "BYTES")
    found.set_data_from_numpy(values)
    return found


def infer(target: Target, *inputs: Any, model: str = "minilm", **options: Any) -> Any:
    given = {"headers": headers(target, options.pop("key", ""))} | options
    return client(target).infer(model, list(inputs), **given)


def rounded(vectors: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[float(np.float32(one)) for one in vector] for vector in vectors]


def keep(answers: "queue.Queue[Any]", result: Any, error: Any) -> None:
    answers.put((result, error))


def server_and_models_are_live_and_ready(target: Target) -> None:
    api, sent = client(target), headers(target)

    assert api.is_server_live()
    assert api.is_server_ready()
    assert api.is_model_ready("minilm", headers=sent)
    assert api.is_model_ready("minilm", "1", headers=sent)
    assert not api.is_model_ready("none", headers=sent)


def server_and_models_are_described(target: Target) -> None:
    api, sent = client(target), headers(target)

    assert "statistics" in api.get_server_metadata(sent).extensions
    metadata = api.get_model_metadata("sentiment", headers=sent, as_json=True)
    assert metadata["inputs"][0] == {"name": "TEXT", "datatype": "BYTES", "shape": ["-1", "1"]}
    config = api.get_model_config("sentiment", headers=sent).config
    assert [one.name for one in config.output] == ["LABEL", "SCORE", "SCORES"]
    assert "positive" in config.parameters["labels"].string_value
    index = api.get_model_repository_index(sent, as_json=True)["models"]
    assert {"name": "minilm", "version": "1", "state": "READY"} in index


def vectors_are_those_of_the_native_route(target: Target) -> None:
    found = infer(target, tensor(TEXTS), request_id="42")

    assert_close(found.as_numpy("EMBEDDING").tolist(), rounded(target.vectors(TEXTS)))
    assert found.get_response().id == "42"


def texts_are_classified_as_by_the_native_route(target: Target) -> None:
    native = target.native("/v1/classify", {"model": "sentiment", "input": TEXTS})["results"]
    outputs = [triton.InferRequestedOutput("LABEL"), triton.InferRequestedOutput("SCORES", 1)]

    found = infer(target, tensor(TEXTS), model="sentiment", outputs=outputs)

    best = [each["labels"][0]["label"] for each in native]
    assert [label.decode() for label in found.as_numpy("LABEL").reshape(-1)] == best
    marked = [text.decode().split(":") for text in found.as_numpy("SCORES").reshape(-1)]
    assert [label for _, _, label in marked] == best


def typed_contents_are_answered_alike(target: Target) -> None:
    text = triton.service_pb2.ModelInferRequest.InferInputTensor(
        name="TEXT", datatype="BYTES", shape=[3, 1]
    )
    text.contents.bytes_contents.extend([each.encode() for each in TEXTS])
    asked = triton.service_pb2.ModelInferRequest(model_name="minilm", inputs=[text])
    api, metadata = client(target), tuple(headers(target).items())

    found = triton.InferResult(api._client_stub.ModelInfer(asked, metadata=metadata))

    assert_close(found.as_numpy("EMBEDDING").tolist(), rounded(target.vectors(TEXTS)))


def an_answer_is_a_hit_through_the_native_route(target: Target) -> None:
    text = new_text()
    infer(target, tensor([text]))

    assert target.native("/v1/embed", {"model": "minilm", "input": text})["usage"]["hit"] == 1
    sent = headers(target)
    (counted,) = client(target).get_inference_statistics("minilm", headers=sent).model_stats
    # What others ask is not shown.
    assert (counted.name, counted.inference_stats.success.count) == ("minilm", 0)
    every = client(target).get_inference_statistics(headers=sent).model_stats
    assert "minilm" in [one.name for one in every]


def messages_may_be_compressed(target: Target) -> None:
    texts = [f"{text} {number}" for text in TEXTS for number in range(10)]
    expected = infer(target, tensor(texts)).as_numpy("EMBEDDING").tolist()
    for coding in ("gzip", "deflate"):
        found = infer(target, tensor(texts), compression_algorithm=coding)

        assert found.as_numpy("EMBEDDING").tolist() == expected


def requests_may_be_asynchronous(target: Target) -> None:
    expected = rounded(target.vectors(TEXTS))
    answers: queue.Queue[Any] = queue.Queue()
    api, sent = client(target), headers(target)
    for text, vector in zip(TEXTS, expected, strict=True):
        api.async_infer("minilm", [tensor([text])], partial(keep, answers), headers=sent)
        found, error = answers.get(timeout=_LATE)
        assert error is None, error
        assert_close(found.as_numpy("EMBEDDING")[0].tolist(), vector)

    async def ask() -> Any:
        async with triton_aio.InferenceServerClient(target.grpc) as asynchronous:
            assert await asynchronous.is_server_live()
            return await asynchronous.infer("minilm", [tensor(TEXTS)], headers=sent)

    assert_close(asyncio.run(ask()).as_numpy("EMBEDDING").tolist(), expected)


def a_stream_answers_in_order(target: Target) -> None:
    texts = [new_text() for _ in range(30)]
    answers: queue.Queue[Any] = queue.Queue()
    api = client(target)
    api.start_stream(partial(keep, answers), headers=headers(target))
    for number, text in enumerate(texts):
        model = "none" if number == 7 else "minilm"
        api.async_stream_infer(
            model, [tensor([text])], request_id=str(number), enable_empty_final_response=True
        )
    found = [answers.get(timeout=_LATE) for _ in texts]
    api.stop_stream()

    assert "none" in found.pop(7)[1].message()
    texts.pop(7)
    assert [error for _, error in found] == [None] * 29
    vectors = [answer.as_numpy("EMBEDDING")[0].tolist() for answer, _ in found]
    assert_close(vectors, rounded(target.vectors(texts)))
    assert found[0][0].get_response().parameters["triton_final_response"].bool_param


def a_stream_may_be_asynchronous(target: Target) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for text in TEXTS:
            yield {"model_name": "minilm", "inputs": [tensor([text])]}

    async def ask() -> list[Any]:
        async with triton_aio.InferenceServerClient(target.grpc) as asynchronous:
            stream = asynchronous.stream_infer(requests(), headers=headers(target))
            return [answer async for answer in stream]

    answers = asyncio.run(ask())
    assert [error for _, error in answers] == [None] * 3
    vectors = [answer.as_numpy("EMBEDDING")[0].tolist() for answer, _ in answers]
    assert_close(vectors, rounded(target.vectors(TEXTS)))


def refused(target: Target, code: str, named: str, *inputs: Any, **options: Any) -> None:
    error = raised(InferenceServerException, lambda: infer(target, *inputs, **options))
    assert error.status() == f"StatusCode.{code}", error
    assert named in error.message(), error


def a_wrong_key_is_an_authentication_error(target: Target) -> None:
    refused(target, "UNAUTHENTICATED", "key", tensor(["a"]), key="sk-nobody-has-this-one")
    refused(target, "PERMISSION_DENIED", "minilm", tensor(["a"]), key=target.narrow_key)
    answers: queue.Queue[Any] = queue.Queue()
    api = client(target)
    api.start_stream(partial(keep, answers))
    assert "UNAUTHENTICATED" in str(answers.get(timeout=_LATE)[1].status())
    api.stop_stream()


def an_unknown_model_is_not_found(target: Target) -> None:
    refused(target, "NOT_FOUND", "none", tensor(["a"]), model="none")
    refused(target, "NOT_FOUND", "minilm@7", tensor(["a"]), model_version="7")
    asked = lambda: client(target).get_model_metadata("none", headers=headers(target))  # noqa: E731
    assert "NOT_FOUND" in str(raised(InferenceServerException, asked).status())


def over_the_limit_its_error_says_so(target: Target) -> None:
    def ask_often() -> None:
        for _ in range(3):
            infer(target, tensor(["a"]), key=target.limited_key)

    error = raised(InferenceServerException, ask_often)
    assert "RESOURCE_EXHAUSTED" in str(error.status())
    threading.Event().wait(2.1)
    assert infer(target, tensor(["a"]), key=target.limited_key).as_numpy("EMBEDDING").any()


def the_clients_own_timeout_ends_its_call(target: Target) -> None:
    slow = [tensor([new_text()])]
    code = "DEADLINE_EXCEEDED"
    refused(target, code, "", *slow, model=target.slow_model, client_timeout=0.5)


def a_deadline_of_the_server_is_its_error(target: Target) -> None:
    late = headers(target, **{"x-request-timeout": "0.5"})
    slow = [tensor([new_text()])]
    refused(target, "DEADLINE_EXCEEDED", "deadline", *slow, model=target.slow_model, headers=late)


def bad_input_is_refused_by_name(target: Target) -> None:
    invalid = "INVALID_ARGUMENT"
    refused(target, invalid, "empty", tensor([""]))
    refused(target, invalid, "`NAME`", tensor(["a"], "NAME"))
    refused(target, invalid, "temperature", tensor(["a"]), parameters={"temperature": 1})
    refused(target, invalid, "sequence", tensor(["a"]), sequence_id=3)
    shared = triton.InferInput("TEXT", (1, 1), "BYTES")
    shared.set_shared_memory("region", 8)
    refused(target, invalid, "shared memory", shared)
    numbers = triton.InferInput("TEXT", (1, 1), "FP32")
    numbers.set_data_from_numpy(np.ones((1, 1), dtype=np.float32))
    refused(target, invalid, "`FP32`", numbers)


def _call(name: str, *arguments: Any) -> Any:
    def call(target: Target) -> object:
        return getattr(client(target), name)(*arguments, headers=headers(target))

    return call


TRITON_GRPC = Client(
    name="tritonclient (grpc)",
    distribution="tritonclient",
    rows={
        Row.RESULT: [
            server_and_models_are_live_and_ready,
            server_and_models_are_described,
            vectors_are_those_of_the_native_route,
            texts_are_classified_as_by_the_native_route,
            typed_contents_are_answered_alike,
            an_answer_is_a_hit_through_the_native_route,
            messages_may_be_compressed,
            requests_may_be_asynchronous,
            a_stream_answers_in_order,
            a_stream_may_be_asynchronous,
        ],
        Row.WRONG_KEY: [a_wrong_key_is_an_authentication_error],
        Row.UNKNOWN_MODEL: [an_unknown_model_is_not_found],
        Row.OVER_LIMIT: [over_the_limit_its_error_says_so],
        Row.DEADLINE: [
            the_clients_own_timeout_ends_its_call,
            a_deadline_of_the_server_is_its_error,
        ],
        Row.BAD_INPUT: [bad_input_is_refused_by_name],
    },
    error=InferenceServerException,
    not_answered={
        "load_model": _call("load_model", "minilm"),
        "unload_model": _call("unload_model", "minilm"),
        "get_trace_settings": _call("get_trace_settings"),
        "update_trace_settings": _call("update_trace_settings", "minilm", {}),
        "get_log_settings": _call("get_log_settings"),
        "update_log_settings": _call("update_log_settings", {}),
        "get_system_shared_memory_status": _call("get_system_shared_memory_status"),
        "register_system_shared_memory": _call("register_system_shared_memory", "r", "/r", 8),
        "unregister_system_shared_memory": _call("unregister_system_shared_memory"),
        "get_cuda_shared_memory_status": _call("get_cuda_shared_memory_status"),
        "register_cuda_shared_memory": _call("register_cuda_shared_memory", "r", b"", 0, 8),
        "unregister_cuda_shared_memory": _call("unregister_cuda_shared_memory"),
    },
)
