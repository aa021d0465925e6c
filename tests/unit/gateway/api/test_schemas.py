"""Bodies become requests; every field of every body reaches the cache key or is named here."""

from typing import Any

import msgspec
import pytest

from sluicegate.gateway.api.schemas import (
    TASK_BODIES,
    AnswerBody,
    Body,
    ChooseBody,
    ClassifyBody,
    DetokenizeBody,
    EmbedBody,
    EntitiesBody,
    InferBody,
    RerankBody,
    TaskBody,
    TokenizeBody,
    ZeroShotBody,
)
from sluicegate.gateway.cache.key import CacheKey, KeyMaker
from sluicegate.gateway.types import InferenceRequest
from tests.support.caching import KEY_PARTS

_BASE: dict[type[TaskBody], dict[str, Any]] = {
    ClassifyBody: {"model": "m", "input": "a"},
    ZeroShotBody: {"model": "m", "input": "a", "labels": ["x", "y"]},
    ChooseBody: {"model": "m", "input": {"prompt": "p", "choices": ["x", "y"]}},
    RerankBody: {"model": "m", "query": "q", "documents": ["a"]},
    EntitiesBody: {"model": "m", "input": "a"},
    AnswerBody: {"model": "m", "input": {"question": "q", "context": "a"}},
    EmbedBody: {"model": "m", "input": "a", "outputs": ["multi_vector"]},
    TokenizeBody: {"model": "m", "input": "a"},
    DetokenizeBody: {"model": "m", "ids": [1]},
}
# Another value for every field of every body.
_OTHER: dict[type[TaskBody], dict[str, Any]] = {
    ClassifyBody: {"model": "n", "input": "b", "top_k": 1, "function": "none"},
    ZeroShotBody: {
        "model": "n",
        "input": "b",
        "labels": ["y", "x"],
        "multi_label": True,
        "hypothesis_template": "{}",
    },
    ChooseBody: {"model": "n", "input": {"prompt": "p", "choices": ["y", "x"]}},
    RerankBody: {
        "model": "n",
        "query": "r",
        "documents": ["b"],
        "instruction": "i",
        "weights": {"dense": 1},
    },
    EntitiesBody: {
        "model": "n",
        "input": "b",
        "aggregation": "max",
        "labels": ["x"],
        "threshold": 0.5,
        "flat": True,
        "multi_label": False,
        "relations": ["knows"],
        "descriptions": {"x": "what"},
    },
    AnswerBody: {
        "model": "n",
        "input": {"question": "r", "context": "a"},
        "top_k": 2,
        "max_answer_tokens": 3,
        "max_row_tokens": 20,
        "overlap": 5,
        "align_to_words": False,
    },
    EmbedBody: {
        "model": "n",
        "input": "b",
        "normalize": False,
        "dimensions": 3,
        "prompt_name": "query",
        "outputs": ["sparse"],
        "input_type": "query",
        "pool_factor": 2,
        "return_tokens": True,
    },
    TokenizeBody: {
        "model": "n",
        "input": "b",
        "counts_only": True,
        "add_special_tokens": False,
        "overlap": 0,
    },
    DetokenizeBody: {"model": "n", "ids": [2], "skip_special_tokens": False},
}
# They shape the answer around the results and change none of them.
_NOT_IN_THE_KEY = {
    "on_error": "continue",
    "truncate": False,
    "top_n": 1,
    "return_documents": True,
    "encoding_format": "base64",
    "output_dtype": "int8",
}


def decode(body: type[TaskBody], fields: dict[str, Any]) -> TaskBody:
    return msgspec.json.decode(msgspec.json.encode(fields), type=body)


def keys(request: InferenceRequest) -> list[CacheKey]:
    parts = msgspec.structs.replace(
        KEY_PARTS, model=request.model, task=request.task, parameters=request.parameters
    )
    return KeyMaker(secret=b"s").prefix(parts).keys(request.items)


_FIELDS = [(body, field) for body in TASK_BODIES for field in body.__struct_fields__]


@pytest.mark.parametrize(
    ("body", "field"), _FIELDS, ids=[f"{body.__name__}-{field}" for body, field in _FIELDS]
)
def test_every_field_changes_the_key_or_is_exempt_by_name(body: type[TaskBody], field: str) -> None:
    base = keys(decode(body, _BASE[body]).request())
    exempt = field in _NOT_IN_THE_KEY
    value = _NOT_IN_THE_KEY[field] if exempt else _OTHER[body][field]

    changed = keys(decode(body, _BASE[body] | {field: value}).request())

    assert (changed == base) == exempt


def test_a_dense_vector_has_one_key_with_and_without_outputs() -> None:
    fields = {"model": "m", "input": "a"}
    plain = keys(decode(EmbedBody, fields).request())

    assert keys(decode(EmbedBody, fields | {"outputs": ["dense"]}).request()) == plain
    both = decode(EmbedBody, fields | {"outputs": ["sparse", "dense"]}).request()
    assert keys(both)[1:] == plain


@pytest.mark.parametrize(
    ("body", "parameters"),
    [(RerankBody, {"query": "q"}), (EmbedBody, {"normalize": True, "dimensions": None})],
)
def test_options_that_are_not_set_are_not_in_the_key(
    body: type[TaskBody], parameters: dict[str, Any]
) -> None:
    assert msgspec.msgpack.decode(decode(body, _BASE[body]).request().parameters) == parameters


def test_the_same_text_is_another_item_for_every_task() -> None:
    found = [keys(decode(body, _BASE[body]).request())[0].address for body in TASK_BODIES]

    assert len(set(found)) == len(TASK_BODIES)


@pytest.mark.parametrize("body", TASK_BODIES)
def test_an_unknown_field_is_refused_by_name(body: type[TaskBody]) -> None:
    with pytest.raises(msgspec.ValidationError, match="temperature"):
        decode(body, _BASE[body] | {"temperature": 1})


def test_a_text_and_a_list_of_one_are_the_same_request() -> None:
    one = decode(ClassifyBody, {"model": "m", "input": "a"}).request()
    listed = decode(ClassifyBody, {"model": "m", "input": ["a"]}).request()

    assert one == listed


def test_a_pair_is_another_item_than_its_texts() -> None:
    pair = decode(ClassifyBody, {"model": "m", "input": [["a", "b"]]}).request()
    texts = decode(ClassifyBody, {"model": "m", "input": ["a", "b"]}).request()

    assert len(pair.items) == 1
    assert pair.items[0] not in texts.items


def infer(**fields: Any) -> InferenceRequest:
    body: Body = msgspec.json.decode(msgspec.json.encode(fields), type=InferBody)
    assert isinstance(body, InferBody)
    return body.request("m")


def test_the_order_of_free_parameters_does_not_matter() -> None:
    one = infer(inputs=[{"a": 1, "b": 2}], parameters={"x": 1, "y": {"p": 1, "q": 2}})
    two = infer(inputs=[{"b": 2, "a": 1}], parameters={"y": {"q": 2, "p": 1}, "x": 1})

    assert keys(one) == keys(two)


@pytest.mark.parametrize("value", [1.0, True, "1", [1], None])
def test_values_that_only_look_alike_are_different_items(value: object) -> None:
    assert keys(infer(inputs=[value])) != keys(infer(inputs=[1]))
