"""Tensors of the Open Inference Protocol become requests of the gateway, and answers tensors."""

import math
import random
import struct
from typing import Any

import msgspec
import pytest

from sluicegate.gateway.api.schemas import (
    AnswerBody,
    ChooseBody,
    ClassifyBody,
    EmbedBody,
    EntitiesBody,
    RerankBody,
    ZeroShotBody,
)
from sluicegate.gateway.config.document import RequestConfig
from sluicegate.gateway.dialects.oip.calls import TensorCall, TensorRequest, tensor_call
from sluicegate.gateway.dialects.oip.models import (
    FoundModel,
    find_model,
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
)
from sluicegate.gateway.dialects.oip.task_tensors import Rows
from sluicegate.gateway.dialects.oip.tensors import InputTensor, RequestedOutput
from sluicegate.gateway.errors import (
    GatewayError,
    InvalidRequest,
    PayloadTooLarge,
    TaskNotSupported,
)
from sluicegate.gateway.types import Answer, ItemOutcome, RegionName, ServedModel, Source
from sluicegate.wire.plans import Serving, Shadow
from sluicegate.wire.protocol import Task
from tests.support.inference_scene import INFO

_MOST = 100
_BOUNDS = RequestConfig(max_values=_MOST, max_items=10, max_body_bytes=1_000)


def served(*tasks: Task, **fields: Any) -> ServedModel:
    info = msgspec.structs.replace(INFO, name="m", tasks=list(tasks), **fields)
    return ServedModel(info=info, regions=(RegionName("eu"),))


def texts(
    *elements: str, name: str = "TEXT", shape: tuple[int, ...] = (), **more: Any
) -> InputTensor:
    shape = shape or (len(elements), 1)
    return InputTensor(
        **{"name": name, "datatype": "BYTES", "shape": shape, "data": elements} | more
    )


def raw(*elements: bytes) -> bytes:
    return b"".join([struct.pack("<I", len(element)) + element for element in elements])


def call(model: ServedModel, *inputs: InputTensor, **more: Any) -> TensorCall:
    request = TensorRequest(inputs=inputs, **more)
    return tensor_call(request, served=model, model="m", version="1", bounds=_BOUNDS)


def outputs(asked: TensorCall, model: ServedModel, *results: bytes) -> dict[str, Any]:
    """Return outputs by name as JSON, after a look at their bytes and shapes."""
    outcomes = [ItemOutcome(source=Source.HIT, result=result) for result in results]
    found = {}
    for tensor in asked.outputs(Answer(model=model, outcomes=outcomes)):
        values = msgspec.json.decode(tensor.json())
        assert math.prod(tensor.shape) == len(values)
        if tensor.datatype == "BYTES":
            assert tensor.raw() == raw(*[value.encode() for value in values])
        else:
            form = {"FP32": "f", "INT64": "q"}[tensor.datatype]
            unpacked = struct.unpack(f"<{len(values)}{form}", tensor.raw())
            assert list(unpacked) == pytest.approx(values)
        found[tensor.name] = (list(tensor.shape), values)
    return found


@pytest.mark.parametrize("shape", [(2,), (2, 1), (1, 2), (1, 2, 1)])
@pytest.mark.parametrize("data", [["ab", "é"], [["ab"], ["é"]], [b"ab", "é".encode()], None])
def test_texts_come_in_any_shape_flat_or_nested_or_as_bytes(
    shape: tuple[int, ...], data: list[Any] | None
) -> None:
    tensor = texts(shape=shape, data=raw(b"ab", "é".encode()) if data is None else data)

    assert tensor.texts(most=2) == ["ab", "é"]


@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        (texts("a", datatype="FP32"), "`FP32`"),
        (texts("a", shape=(2,)), "1 elements"),
        (texts("a", "b", shape=(1,)), "2 elements"),
        (texts("a", shape=(-1, -1)), "dimensions"),
        (texts("a", shape=(1,) * 9), "dimensions"),
        (texts("a", data=[1]), "number 0"),
        (texts("a", data=[{"a": 1}]), "number 0"),
        (texts("a", "b", data=[b"a", b"\xff"]), "number 1, that is not UTF-8"),
        (texts("a", data=raw(b"abc")[:-1]), "within an element"),
        (texts("a", data=b"\x01\x00"), "within an element"),
        (texts("a", data=b"\xff\xff\xff\xff"), "within an element"),
        (texts("a", data=raw(b"a", b"b", b"c")), "2 elements"),
        (texts("a", data=b""), "0 elements"),
    ],
)
def test_an_input_that_does_not_fit_is_refused_by_name(tensor: InputTensor, named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tensor.texts(most=10)

    assert "`TEXT`" in refused.value.detail
    assert named in refused.value.detail


def test_no_more_elements_are_read_than_a_request_may_have() -> None:
    empty = texts(shape=(2**60, 2**60), data=b"\0" * 4_000)

    with pytest.raises(PayloadTooLarge):
        empty.texts(most=999)


def test_damaged_bytes_are_texts_or_refused() -> None:
    chance = random.Random(1)
    whole = raw(b"a text", b"", "ünder".encode(), b"x" * 300)
    for _ in range(2_000):
        damaged = bytearray(whole[: chance.randrange(len(whole) + 1)])
        for _ in range(chance.randrange(4)):
            damaged and damaged.__setitem__(chance.randrange(len(damaged)), chance.randrange(256))
        shape = (chance.choice([0, 1, 4, 5, 2**40]),)
        try:
            found = texts(shape=shape, data=bytes(damaged)).texts(most=_MOST)
        except GatewayError:
            continue
        assert len(found) == shape[0]


def test_inputs_say_the_task_and_make_the_native_body() -> None:
    topics = served(Task.ZERO_SHOT, Task.CHOOSE, Task.CLASSIFY)
    labels = texts("x", "y", name="LABELS", shape=(1, 2))
    minilm, answers = served(Task.EMBED, Task.RERANK), served(Task.ANSWER)

    assert call(topics, texts("a", "b")).body == ClassifyBody(model="m", input=["a", "b"])
    pairs = call(topics, texts("a", "b"), texts("c", "d", name="TEXT_PAIR"))
    assert pairs.body == ClassifyBody(model="m", input=[("a", "c"), ("b", "d")])
    for same in (labels, texts("x", "y", name="LABELS", shape=(2,))):
        zero_shot = call(topics, texts("a", "b"), same, parameters={"multi_label": True})
        expected = ZeroShotBody(model="m", input=["a", "b"], labels=["x", "y"], multi_label=True)
        assert zero_shot.body == expected
    repeated = texts("x", "y", "x", "y", name="LABELS", shape=(2, 2))
    assert call(topics, texts("a", "b"), repeated).body.items() == ["a", "b"]
    chosen = call(topics, texts("p", "q"), texts(*"abcd", name="CHOICES", shape=(2, 2))).body
    assert isinstance(chosen, ChooseBody)
    assert [item.choices for item in chosen.items()] == [["a", "b"], ["c", "d"]]
    shared = call(topics, texts("p", "q"), texts("a", "b", name="CHOICES", shape=(2,))).body
    assert [item.choices for item in shared.items()] == [["a", "b"], ["a", "b"]]
    vectors = call(minilm, texts("a"), parameters={"dimensions": 2, "timeout": 5, "priority": 1})
    assert vectors.body == EmbedBody(model="m", input=["a"], dimensions=2)
    for query in (texts("q", name="QUERY"), texts("q", "q", name="QUERY")):
        ranked = call(minilm, query, texts("a", "b")).body
        assert ranked == RerankBody(model="m", query="q", documents=["a", "b"])
    for question in (texts("q", name="QUESTION"), texts("q", "r", name="QUESTION")):
        asked = call(answers, texts("a", "b"), question, parameters={"top_k": 2}).body
        assert isinstance(asked, AnswerBody)
        assert [item.context for item in asked.items()] == ["a", "b"]
        assert asked.items()[-1].question == ("q" if question.rows == 1 else "r")
        assert asked.top_k == 2
    algorithm = call(
        served(Task.INFER), texts('{"a": 1}', name="INPUT"), parameters={"depth": 2}
    ).body
    assert algorithm.items() == [{"a": 1}]
    named = call(served(Task.EMBED, Task.ENTITIES), texts("a"), parameters={"task": "entities"})
    assert named.tensors.task == Task.ENTITIES


def test_labels_are_for_the_task_that_the_model_has() -> None:
    labels = texts("x", "y", name="LABELS", shape=(1, 2))

    found = call(served(Task.ENTITIES), texts("a"), labels, parameters={"threshold": 0.2}).body
    assert found == EntitiesBody(model="m", input=["a"], labels=["x", "y"], threshold=0.2)
    several = served(Task.ENTITIES, Task.ZERO_SHOT)
    assert isinstance(call(several, texts("a"), labels).body, ZeroShotBody)
    wanted = call(several, texts("a"), labels, parameters={"task": "entities"}).body
    assert wanted == EntitiesBody(model="m", input=["a"], labels=["x", "y"])


@pytest.mark.parametrize(
    ("tasks", "inputs", "more", "named"),
    [
        ([Task.EMBED], [texts("a", name="text")], {}, "`text` is unknown"),
        ([Task.EMBED], [texts("a"), texts("a")], {}, "`TEXT` is unknown"),
        ([Task.EMBED], [], {}, "`TEXT` is missing"),
        ([Task.ZERO_SHOT], [texts("a")], {}, "`LABELS` is missing"),
        ([Task.RERANK], [texts("a")], {}, "`QUERY` is missing"),
        ([Task.ANSWER], [texts("a")], {}, "`QUESTION` is missing"),
        (
            [Task.ANSWER],
            [texts("a", "b"), texts("q", "r", "s", name="QUESTION")],
            {},
            "`QUESTION` has 3 rows for 2 texts",
        ),
        (
            [Task.ANSWER],
            [texts("a"), texts("q", "r", name="QUESTION", shape=(1, 2))],
            {},
            "`QUESTION` must have one text",
        ),
        ([Task.INFER], [texts("a")], {}, "`TEXT` is unknown"),
        ([Task.EMBED, Task.ENTITIES], [texts("a")], {}, "embed"),
        ([Task.EMBED], [texts("a")], {"parameters": {"task": "sing"}}, "`task`"),
        ([Task.EMBED], [texts("a")], {"parameters": {"task": {}}}, "`task`"),
        ([Task.TOKENIZE], [texts("a")], {"parameters": {"task": "tokenize"}}, "`task`"),
        ([Task.EMBED], [texts("a")], {"parameters": {"sequence_id": 1}}, "sequence_id"),
        ([Task.EMBED], [texts("a")], {"parameters": {"on_error": "continue"}}, "on_error"),
        ([Task.EMBED], [texts("a")], {"outputs": [RequestedOutput(name="X")]}, "`X`"),
        (
            [Task.EMBED],
            [texts("a")],
            {"outputs": [RequestedOutput(name="EMBEDDING")] * 2},
            "twice",
        ),
        (
            [Task.EMBED],
            [texts("a")],
            {"outputs": [RequestedOutput(name="EMBEDDING", classification=1)]},
            "classification",
        ),
        ([Task.RERANK], [texts("a"), texts("q", "r", name="QUERY")], {}, "equal"),
        ([Task.RERANK], [texts("a"), texts("q", "r", name="QUERY", shape=(2,))], {}, "one text"),
        ([Task.RERANK], [texts("a"), texts(name="QUERY", shape=(0, 1))], {}, "no elements"),
        ([Task.CLASSIFY], [texts("a", "b"), texts("c", name="TEXT_PAIR")], {}, "as many"),
        (
            [Task.CHOOSE],
            [texts(*"abc"), texts(*"abcd", name="CHOICES", shape=(2, 2))],
            {},
            "2 rows for 3",
        ),
        ([Task.INFER], [texts("{", name="INPUT")], {}, "`INPUT`"),
    ],
)
def test_what_is_not_of_the_task_is_refused_by_name(
    tasks: list[Task], inputs: list[InputTensor], more: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        call(served(*tasks), *inputs, **more)

    assert named in refused.value.detail


def test_another_task_is_refused_with_those_of_the_model() -> None:
    with pytest.raises(TaskNotSupported, match=r"`m`.*classify, not rerank"):
        call(served(Task.CLASSIFY), texts("q", name="QUERY"), texts("a"))
    with pytest.raises(PayloadTooLarge):
        call(served(Task.INFER), texts(f"[{'[],' * 200}1]", name="INPUT"))


@pytest.mark.parametrize(
    ("tasks", "inputs"),
    [
        ([Task.EMBED], [texts(*"abcdefghijk")]),
        ([Task.CHOOSE], [texts(*"abcdefghijk"), texts("x", "y", name="CHOICES", shape=(2,))]),
        ([Task.CHOOSE], [texts(*"abcdefghij"), texts(*"0123456789z", name="CHOICES", shape=(11,))]),
        ([Task.CHOOSE], [texts(*"abc"), texts("é" * 200, name="CHOICES", shape=(1,))]),
    ],
    ids=["items", "items with choices", "choices of all", "bytes of all"],
)
def test_what_all_texts_share_is_bounded_before_each_has_it(
    tasks: list[Task], inputs: list[InputTensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rows, "each", pytest.fail)

    with pytest.raises(PayloadTooLarge, match="several requests"):
        call(served(*tasks), *inputs)


def test_answers_are_tensors_with_a_row_for_each_item() -> None:
    labels = [
        b'{"labels":[{"label":"b","score":0.75},{"label":"a","score":0.25}]}',
        b'{"labels":[{"label":"a","score":0.5},{"label":"b","score":0.5}]}',
    ]
    classifier = served(Task.CLASSIFY, labels=["a", "b"])
    topics = served(Task.ZERO_SHOT, Task.CHOOSE)
    options = texts("b", "c", "a", name="LABELS", shape=(3,))
    choices = texts("x", "y", name="CHOICES", shape=(2,))
    best = [RequestedOutput(name="SCORES", classification=1)]

    assert outputs(call(classifier, texts("p", "q")), classifier, *labels) == {
        "LABEL": ([2, 1], ["b", "a"]),
        "SCORE": ([2, 1], [0.75, 0.5]),
        "SCORES": ([2, 2], [0.25, 0.75, 0.5, 0.5]),
    }
    found = outputs(call(topics, texts("p"), options), topics, labels[0])
    assert found["SCORES"] == ([1, 3], [0.75, 0.0, 0.25])
    found = outputs(call(classifier, texts("p", "q"), outputs=best), classifier, *labels)
    assert found == {"SCORES": ([2, 1], ["0.750000:1:b", "0.500000:0:a"])}
    chosen = b'{"choice":1,"scores":[0.25,0.75]}'
    assert outputs(call(topics, texts("p"), choices), topics, chosen) == {
        "CHOICE": ([1, 1], [1]),
        "SCORES": ([1, 2], [0.25, 0.75]),
    }
    found = outputs(call(topics, texts("p"), choices, outputs=best), topics, chosen)
    assert found == {"SCORES": ([1, 1], ["0.750000:1:y"])}
    minilm = served(Task.EMBED, Task.RERANK)
    vectors = outputs(call(minilm, texts("a", "b")), minilm, *[b'{"embedding":[1.5,-2.0]}'] * 2)
    assert vectors == {"EMBEDDING": ([2, 2], [1.5, -2.0, 1.5, -2.0])}
    ranked = call(minilm, texts("a", "b"), texts("q", name="QUERY"))
    found = outputs(ranked, minilm, b'{"score":0.5}', b'{"score":0.75}')
    assert found == {"SCORE": ([2, 1], [0.5, 0.75])}
    entities, algorithm = served(Task.ENTITIES), served(Task.INFER)
    result = b'{"entities":[{"label":"PER","score":0.9,"text":"A","start":0,"end":1}]}'
    assert outputs(call(entities, texts("A")), entities, result) == {
        "ENTITIES": ([1, 1], [result[12:-1].decode()])
    }
    run = call(algorithm, texts("1", name="INPUT"))
    assert outputs(run, algorithm, b'{"mood":1}') == {"OUTPUT": ([1, 1], ['{"mood":1}'])}


def test_answers_are_a_json_list_for_each_text() -> None:
    answers = served(Task.ANSWER)
    asked = call(answers, texts("A"), texts("q", name="QUESTION"))
    listed = '[{"answer":"A","score":0.5,"start":0,"end":1}]'

    found = outputs(asked, answers, f'{{"answers":{listed},"no_answer_score":0.25}}'.encode())

    assert found == {"ANSWERS": ([1, 1], [listed]), "NO_ANSWER_SCORE": ([1, 1], [0.25])}


def test_models_are_described_by_the_tensors_of_their_tasks() -> None:
    minilm = served(Task.EMBED, Task.RERANK, dimensions=2)
    found = find_model({"m": minilm}.get, "m")

    metadata = msgspec.to_builtins(model_metadata(found, "m"))
    assert metadata["inputs"] == [
        {"name": "TEXT", "datatype": "BYTES", "shape": [-1, 1]},
        {"name": "QUERY", "datatype": "BYTES", "shape": [-1, 1]},
    ]
    assert metadata["outputs"] == [
        {"name": "EMBEDDING", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "SCORE", "datatype": "FP32", "shape": [-1, 1]},
    ]
    config = msgspec.to_builtins(model_config(found, "m", max_items=7))
    assert [(one["name"], one["optional"]) for one in config["input"]] == [
        ("TEXT", False),
        ("QUERY", True),
    ]
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (7, [1])
    assert config["parameters"]["tasks"] == {"string_value": "embed,rerank"}
    tokens = served(*Task, dimensions=2)
    every = model_config(find_model({"m": tokens}.get, "m"), "m", max_items=7)
    assert "tokenize" not in every.parameters["tasks"].string_value
    both = served(Task.CLASSIFY, Task.ZERO_SHOT, labels=["a", "b"])
    described = model_metadata(find_model({"m": both}.get, "m"), "m")
    assert {one.name: one.shape for one in described.outputs}["SCORES"] == [-1, -1]


def test_versions_are_the_revisions_that_are_served() -> None:
    shares = Serving(revisions={"2": 90, "10": 10}, shadow=Shadow(revision="11"))
    split = served(Task.EMBED, serving=shares)
    alone = served(Task.EMBED, serving=Serving(revisions={"3": 1}))
    tenth = ServedModel(info=msgspec.structs.replace(split.info, name="m@10"), regions=())
    table = {"m": split, "m@10": tenth}

    assert find_model(table.get, "m") == FoundModel(split, "m", "")
    assert find_model(table.get, "m", "10") == FoundModel(tenth, "m@10", "10")
    assert find_model(table.get, "m", "4") == FoundModel(None, "m@4", "4")
    assert find_model({"m": alone}.get, "m") == FoundModel(alone, "m", "3")
    assert find_model({"m": alone}.get, "m", "3") == FoundModel(alone, "m", "3")
    assert find_model(lambda _: None, "m") == FoundModel(None, "m", "")
    assert model_metadata(find_model(table.get, "m"), "m").versions == ["2", "10", "11"]
    index = [(one.name, one.version) for one in repository_index([split, tenth])]
    assert index == [("m", "2"), ("m", "10"), ("m", "11")]
    assert [one.version for one in model_statistics([split])] == ["2", "10", "11"]
    assert [one.version for one in model_statistics([alone])] == ["3"]
