"""Has the checks of `tritonclient.http`."""

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.clients.checks import TEXTS, Client, Row, Target, assert_close, new_text, raised

_QUERY = "How do I reset my card PIN?"
_TOPICS = ["sports", "business", "banking"]


def host(target: Target) -> str:
    return target.url.removeprefix("http://")


def client(target: Target, **options: Any) -> Any:
    return triton.InferenceServerClient(host(target), **options)


def headers(target: Target, key: str = "", **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key or target.key}"} | more


def tensor(
    elements: Sequence[str], name: str = "TEXT", *, shape: tuple[int, ...] = (), **options: Any
) -> Any:
    values = np.array([each.encode() for each in elements], dtype=np.object_)
    values = values.reshape(shape or (len(elements), 1))
    found = triton.InferInput(name, values.shape, "BYTES")
    found.set_data_from_numpy(values, **options)
    return found


def wanted(*names: str, **options: Any) -> list[Any]:
    return [triton.InferRequestedOutput(name, **options) for name in names]


def infer(target: Target, *inputs: Any, model: str = "minilm", **options: Any) -> Any:
    key = options.pop("key", "")
    given = {"headers": headers(target, key)} | options
    return client(target).infer(model, list(inputs), **given)


def scores_in_order(target: Target, results: Any, labels: Sequence[str]) -> list[list[float]]:
    found = [{one["label"]: one["score"] for one in each["labels"]} for each in results]
    return [[each[label] for label in labels] for each in found]


def server_and_models_are_live_and_ready(target: Target) -> None:
    api = client(target)

    assert api.is_server_live()
    assert api.is_server_ready()
    assert api.is_model_ready("minilm", headers=headers(target))
    assert api.is_model_ready("minilm", "1", headers=headers(target))
    assert not api.is_model_ready("none", headers=headers(target))
    assert not api.is_model_ready("minilm", "7", headers=headers(target))


def server_and_models_are_described(target: Target) -> None:
    api, sent = client(target), headers(target)

    assert "binary_tensor_data" in api.get_server_metadata(sent)["extensions"]
    metadata = api.get_model_metadata("sentiment", headers=sent)
    assert metadata["inputs"][0] == {"name": "TEXT", "datatype": "BYTES", "shape": [-1, 1]}
    assert api.get_model_metadata("sentiment", "1", sent) == metadata
    config = api.get_model_config("sentiment", headers=sent)
    assert [one["name"] for one in config["output"]] == ["LABEL", "SCORE", "SCORES"]
    assert "positive" in json.loads(config["parameters"]["labels"]["string_value"])
    index = api.get_model_repository_index(sent)
    assert {"name": "minilm", "version": "1", "state": "READY", "reason": ""} in index


def vectors_are_those_of_the_native_route(target: Target) -> None:
    expected = [[float(np.float32(one)) for one in each] for each in target.vectors(TEXTS)]
    for is_binary in (True, False):
        found = infer(
            target,
            tensor(TEXTS, binary_data=is_binary),
            outputs=wanted("EMBEDDING", binary_data=is_binary),
            request_id="42",
        )

        vectors = found.as_numpy("EMBEDDING")
        assert (vectors.dtype, vectors.shape) == (np.float32, (3, len(expected[0])))
        assert_close(vectors.tolist(), expected)
        assert found.get_response()["id"] == "42"
        assert found.get_output("EMBEDDING")["datatype"] == "FP32"
    for shape in ((3,), (1, 3)):
        again = infer(target, tensor(TEXTS, shape=shape))
        assert_close(again.as_numpy("EMBEDDING").tolist(), expected)


def texts_are_classified_as_by_the_native_route(target: Target) -> None:
    native = target.native("/v1/classify", {"model": "sentiment", "input": TEXTS})["results"]
    config = client(target).get_model_config("sentiment", headers=headers(target))
    labels = json.loads(config["parameters"]["labels"]["string_value"])

    found = infer(target, tensor(TEXTS), model="sentiment")

    best = [each["labels"][0]["label"].encode() for each in native]
    assert found.as_numpy("LABEL").reshape(-1).tolist() == best
    assert_close(found.as_numpy("SCORES").tolist(), scores_in_order(target, native, labels))
    outputs = wanted("SCORES", class_count=1)
    (one,) = infer(target, tensor(TEXTS[:1]), model="sentiment", outputs=outputs).as_numpy(
        "SCORES"
    )[0]
    score, index, label = one.decode().split(":")
    assert (label, labels[int(index)]) == (best[0].decode(), best[0].decode())
    assert abs(float(score) - native[0]["labels"][0]["score"]) < 1e-5


def texts_are_labelled_and_chosen_for_as_by_the_native_route(target: Target) -> None:
    body = {"model": "topics", "input": TEXTS, "labels": _TOPICS, "multi_label": True}
    native = target.native("/v1/zero-shot", body)["results"]
    labels = tensor(_TOPICS, "LABELS", shape=(1, 3))

    found = infer(target, tensor(TEXTS), labels, model="topics", parameters={"multi_label": True})

    assert_close(found.as_numpy("SCORES").tolist(), scores_in_order(target, native, _TOPICS))
    items = [{"prompt": text, "choices": _TOPICS} for text in TEXTS]
    native = target.native("/v1/choose", {"model": "topics", "input": items})["results"]
    choices = tensor(_TOPICS * 3, "CHOICES", shape=(3, 3))
    found = infer(target, tensor(TEXTS), choices, model="topics")
    assert found.as_numpy("CHOICE").reshape(-1).tolist() == [each["choice"] for each in native]
    assert_close(found.as_numpy("SCORES").tolist(), [each["scores"] for each in native])


def documents_are_scored_as_by_the_native_route(target: Target) -> None:
    body = {"model": "minilm", "query": _QUERY, "documents": TEXTS}
    native = target.native("/v1/rerank", body)["results"]

    for query in (tensor([_QUERY], "QUERY"), tensor([_QUERY] * 3, "QUERY")):
        found = infer(target, tensor(TEXTS), query).as_numpy("SCORE")

        expected = [each["score"] for each in sorted(native, key=lambda one: one["index"])]
        assert_close(found.reshape(-1).tolist(), expected)


def entities_and_algorithms_answer_in_json(target: Target) -> None:
    text = "Angela Merkel visited Paris."
    native = target.native("/v1/entities", {"model": "entities-demo", "input": text})

    (found,) = infer(target, tensor([text]), model="entities-demo").as_numpy("ENTITIES")[0]

    assert json.loads(found) == native["results"][0]["entities"]
    native = target.native("/v1/infer/reviewer", {"inputs": TEXTS[:1]})
    item = tensor([json.dumps(TEXTS[0])], "INPUT")
    (found,) = infer(target, item, model="reviewer").as_numpy("OUTPUT")[0]
    assert json.loads(found) == native["results"][0]


def bodies_may_be_compressed_both_ways(target: Target) -> None:
    texts = [f"{text} {number}" for text in TEXTS for number in range(10)]
    expected = infer(target, tensor(texts)).as_numpy("EMBEDDING").tolist()
    for coding in ("gzip", "deflate"):
        found = infer(
            target,
            tensor(texts),
            request_compression_algorithm=coding,
            response_compression_algorithm=coding,
        )

        assert found.as_numpy("EMBEDDING").tolist() == expected


def an_answer_is_a_hit_through_the_native_route(target: Target) -> None:
    text = new_text()
    infer(target, tensor([text]))

    assert target.native("/v1/embed", {"model": "minilm", "input": text})["usage"]["hit"] == 1
    counted = client(target).get_inference_statistics("minilm", headers=headers(target))
    # What others ask is not shown.
    assert counted["model_stats"][0]["inference_stats"]["cache_hit"]["count"] == 0
    every = client(target).get_inference_statistics(headers=headers(target))
    assert "minilm" in [one["name"] for one in every["model_stats"]]


def requests_may_be_asynchronous(target: Target) -> None:
    api = client(target, concurrency=4)
    expected = target.vectors(TEXTS)
    sent = [api.async_infer("minilm", [tensor([text])], headers=headers(target)) for text in TEXTS]
    for found, vector in zip(sent, expected, strict=True):
        assert_close(found.get_result().as_numpy("EMBEDDING")[0].tolist(), _rounded(vector))

    async def ask() -> Any:
        async with triton_aio.InferenceServerClient(host(target)) as asynchronous:
            assert await asynchronous.is_server_live()
            return await asynchronous.infer("minilm", [tensor(TEXTS)], headers=headers(target))

    assert len(asyncio.run(ask()).as_numpy("EMBEDDING")) == len(TEXTS)


def a_body_may_be_made_and_an_answer_read_apart(target: Target) -> None:
    content, length = triton.InferenceServerClient.generate_request_body([tensor(["a"])])
    assert length

    async def ask() -> Any:
        import aiohttp  # noqa: PLC0415 - of the client

        sent = headers(target) | {"Inference-Header-Content-Length": str(length)}
        async with aiohttp.ClientSession() as session:
            url = f"{target.url}/v2/models/minilm/infer"
            async with session.post(url, data=content, headers=sent) as response:
                size = int(response.headers["Inference-Header-Content-Length"])
                return await response.read(), size

    answer, size = asyncio.run(ask())
    found = triton.InferenceServerClient.parse_response_body(answer, header_length=size)
    assert_close(found.as_numpy("EMBEDDING")[0].tolist(), _rounded(target.vectors(["a"])[0]))


def _rounded(vector: Sequence[float]) -> list[float]:
    return [float(np.float32(one)) for one in vector]


def refused(target: Target, status: str, named: str, *inputs: Any, **options: Any) -> Any:
    error = raised(InferenceServerException, lambda: infer(target, *inputs, **options))
    assert error.status() == status, error
    assert named in error.message(), error
    return error


def a_wrong_key_is_an_authentication_error(target: Target) -> None:
    refused(target, "401", "key", tensor(["a"]), key="sk-nobody-has-this-one")
    refused(target, "403", "minilm", tensor(["a"]), key=target.narrow_key)


def an_unknown_model_is_not_found(target: Target) -> None:
    refused(target, "404", "none", tensor(["a"]), model="none")
    refused(target, "404", "minilm@7", tensor(["a"]), model_version="7")
    asked = lambda: client(target).get_model_metadata("none", headers=headers(target))  # noqa: E731
    assert raised(InferenceServerException, asked).status() == "404"


def bad_input_is_refused_by_name(target: Target) -> None:
    refused(target, "422", "empty", tensor([""]))
    refused(target, "400", "`QUERY` is unknown", tensor(["a"], "QUERY"), tensor(["a"], "QUERY"))
    refused(target, "400", "`NAME`", tensor(["a"], "NAME"))
    refused(target, "400", "`LABEL`", tensor(["a"]), outputs=wanted("LABEL"))
    refused(target, "400", "temperature", tensor(["a"]), parameters={"temperature": 1})
    refused(target, "400", "sequence_id", tensor(["a"]), sequence_id=3)
    numbers = triton.InferInput("TEXT", (1, 1), "FP32")
    numbers.set_data_from_numpy(np.ones((1, 1), dtype=np.float32))
    refused(target, "400", "`FP32`", numbers)


def over_the_limit_its_error_says_so(target: Target) -> None:
    def ask_often() -> None:
        for _ in range(3):
            infer(target, tensor(["a"]), key=target.limited_key)

    error = raised(InferenceServerException, ask_often)
    assert error.status() == "429"
    threading.Event().wait(2.1)
    assert infer(target, tensor(["a"]), key=target.limited_key).as_numpy("EMBEDDING").any()


def the_clients_own_timeout_ends_its_call(target: Target) -> None:
    api = client(target, network_timeout=1.0)
    asked = [tensor([new_text()])]
    raised(TimeoutError, lambda: api.infer(target.slow_model, asked, headers=headers(target)))


def a_deadline_of_the_server_is_its_error(target: Target) -> None:
    for model, seconds in ((target.slow_model, "0.5"), ("minilm", "0.0001")):
        late = headers(target) | {"X-Request-Timeout": seconds}
        texts = [f"{new_text()} " + "word " * 200] * 16
        refused(target, "504", "deadline", tensor(texts), model=model, headers=late)


def _call(name: str, *arguments: Any) -> Any:
    def call(target: Target) -> object:
        return getattr(client(target), name)(*arguments, headers=headers(target))

    return call


TRITON_HTTP = Client(
    name="tritonclient (http)",
    distribution="tritonclient",
    rows={
        Row.RESULT: [
            server_and_models_are_live_and_ready,
            server_and_models_are_described,
            vectors_are_those_of_the_native_route,
            texts_are_classified_as_by_the_native_route,
            texts_are_labelled_and_chosen_for_as_by_the_native_route,
            documents_are_scored_as_by_the_native_route,
            entities_and_algorithms_answer_in_json,
            bodies_may_be_compressed_both_ways,
            an_answer_is_a_hit_through_the_native_route,
            requests_may_be_asynchronous,
            a_body_may_be_made_and_an_answer_read_apart,
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
        "register_cuda_shared_memory": _call("register_cuda_shared_memory", "r", b"h", 0, 8),
        "unregister_cuda_shared_memory": _call("unregister_cuda_shared_memory"),
    },
)
