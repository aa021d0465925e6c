"""Defines the input and output tensors of each task.

Each element of the input `TEXT` is an item. If a model runs its owner's own algorithm, each element
of the input `INPUT` is an item instead. Outputs have a row for each item. An input that all items
share, such as the query of a rerank request, has one row. But if the client has combined several
requests into one batch, the shared input has several rows. These must be equal.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.schemas import (
    AnswerBody,
    Body,
    ChooseBody,
    ClassifyBody,
    EmbedBody,
    EntitiesBody,
    InferBody,
    RerankBody,
    ZeroShotBody,
)
from sluicegate.gateway.api.vectors import floats_as_json
from sluicegate.gateway.config.document import RequestConfig
from sluicegate.gateway.dialects.oip.tensors import (
    DataType,
    FloatTensor,
    IntegerTensor,
    OutputTensor,
    RequestedOutput,
    TextTensor,
    VectorTensor,
)
from sluicegate.gateway.dialects.stored_results import StoredLabel, choice_in, labels_in, score_in
from sluicegate.gateway.errors import InvalidRequest, PayloadTooLarge
from sluicegate.wire.protocol import AnswerParameters, ModelInfo, Task

ANY = -1
"""Stands for a dimension of any size."""
TEXT = "TEXT"
_encode = msgspec.json.encode
_decode = msgspec.json.decode
_BYTE_ORDER_MARK = "\ufeff"
_Results = Sequence[bytes]


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an input or output tensor. `row` is the size of a row."""

    name: str
    datatype: DataType = "BYTES"
    row: int = 1
    is_optional: bool = False

    @property
    def shape(self) -> list[int]:
        """The shape of the tensor. The number of rows is -1, which stands for any number."""
        return [ANY, self.row]


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the elements of an input, and the number of its rows."""

    name: str
    texts: list[str]
    count: int

    def shared(self) -> list[str]:
        """Return the row that all items share. If there are several rows, they must be equal.

        Raises:
            InvalidRequest: the rows differ.
        """
        rows = self.each(self.count)
        if any(row != rows[0] for row in rows):
            raise InvalidRequest(
                f"The input `{self.name}` is shared by all texts: send one row, or equal ones."
            )
        return rows[0]

    def check_copies(self, items: int, bounds: RequestConfig, *, what: str) -> None:
        """Check the size of a single row if it is copied for each of the `items`.

        Raises:
            PayloadTooLarge: the copies exceed `bounds`.
        """
        if self.count > 1:
            return  # each item has its own row
        size, texts = len("".join(self.texts).encode()), len(self.texts)
        if items * texts > bounds.max_values or items * size > bounds.max_body_bytes:
            raise PayloadTooLarge(
                f"{items} texts that share {texts} {what} of {size} bytes are too large a request;"
                " send several requests."
            )

    def each(self, items: int) -> list[list[str]]:
        """Return the row of each of the `items`. A single row is the row of all of them.

        Raises:
            InvalidRequest: the input has no elements, or another number of rows.
        """
        if not self.texts:
            raise InvalidRequest(f"The input `{self.name}` has no elements.")
        size = len(self.texts) // self.count
        rows = [self.texts[at : at + size] for at in range(0, len(self.texts), size)]
        if len(rows) == 1:
            return rows * items
        if len(rows) != items:
            raise InvalidRequest(
                f"The input `{self.name}` has {len(rows)} rows for {items} texts; send one row, or"
                " one row for each text."
            )
        return rows


class TaskTensors:
    """Converts the input tensors of a task to the native body, and results to output tensors."""

    task: Task
    body: type[Body]
    items = "TEXT"
    """The input whose elements are the items."""
    inputs: tuple[TensorSpec, ...] = (TensorSpec(name="TEXT"),)
    parameters: tuple[str, ...] = ("truncate",)
    """The fields of the native body that a request's parameters may set."""

    def outputs(self, info: ModelInfo) -> tuple[TensorSpec, ...]:
        """Return the outputs of a model."""
        raise NotImplementedError

    def has_own(self, name: str) -> bool:
        """Return whether the task has an input that tells the task, unlike `TEXT`."""
        return name != TEXT and any(spec.name == name for spec in self.inputs)

    def check_size(self, inputs: Mapping[str, Rows], bounds: RequestConfig) -> None:
        """Check the size of inputs that become larger in the native body than in the request.

        Raises:
            PayloadTooLarge: the native body would exceed `bounds`.
        """

    def fields(self, inputs: Mapping[str, Rows]) -> dict[str, Any]:
        """Return the fields of the native body. `inputs` must contain all required inputs."""
        return {"input": inputs["TEXT"].texts}

    def tensor(
        self, wanted: RequestedOutput, results: _Results, body: Body, info: ModelInfo
    ) -> OutputTensor:
        """Return the output tensor that `wanted` names. It must be one of `outputs`."""
        raise NotImplementedError


class _LabelTensors(TaskTensors):
    """Returns, for each text, the best label, its score, and the scores of all labels."""

    def order(self, results: _Results, body: Body, info: ModelInfo) -> Sequence[str]:
        """Return the labels in the order of the output `SCORES`."""
        raise NotImplementedError

    @override
    def tensor(
        self, wanted: RequestedOutput, results: _Results, body: Body, info: ModelInfo
    ) -> OutputTensor:
        found = [labels_in(result) for result in results]
        name, shape = wanted.name, (len(found), 1)
        if name == "LABEL":
            return TextTensor(name=name, shape=shape, texts=[one[0].label for one in found])
        if name == "SCORE":
            return FloatTensor(name=name, shape=shape, values=[one[0].score for one in found])
        order = self.order(results, body, info)
        return _score_tensor(wanted, [_in_order(one, order) for one in found], [order])


class ClassifyTensors(_LabelTensors):
    """Labels texts, or pairs of texts."""

    task = Task.CLASSIFY
    body = ClassifyBody
    inputs = (TensorSpec(name="TEXT"), TensorSpec(name="TEXT_PAIR", is_optional=True))
    parameters = ("truncate", "function")

    @override
    def outputs(self, info: ModelInfo) -> tuple[TensorSpec, ...]:
        return _labelled(len(info.labels or ()) or ANY)

    @override
    def fields(self, inputs: Mapping[str, Rows]) -> dict[str, Any]:
        texts = inputs["TEXT"].texts
        if "TEXT_PAIR" not in inputs:
            return {"input": texts}
        second = inputs["TEXT_PAIR"].texts
        if len(second) != len(texts):
            raise InvalidRequest("The input `TEXT_PAIR` must have as many elements as `TEXT`.")
        return {"input": list(zip(texts, second, strict=True))}

    @override
    def order(self, results: _Results, body: Body, info: ModelInfo) -> Sequence[str]:
        return info.labels or sorted({one.label for one in labels_in(results[0])})


class ZeroShotTensors(_LabelTensors):
    """Labels texts with the caller's labels."""

    task = Task.ZERO_SHOT
    body = ZeroShotBody
    inputs = (TensorSpec(name="TEXT"), TensorSpec(name="LABELS", row=ANY))
    parameters = ("truncate", "multi_label", "hypothesis_template")

    @override
    def outputs(self, info: ModelInfo) -> tuple[TensorSpec, ...]:
        return _labelled(ANY)

    @override
    def fields(self, inputs: Mapping[str, Rows]) -> dict[str, Any]:
        return {"input": inputs["TEXT"].texts, "labels": inputs["LABELS"].shared()}

    @override
    def order(self, results: _Results, body: Body, info: ModelInfo) -> Sequence[str]:
        return body.labels if isinstance(body, ZeroShotBody) else ()


class ChooseTensors(TaskTensors):
    """Chooses among options. Several prompts may share the options."""

    task = Task.CHOOSE
    body = ChooseBody
    inputs = (TensorSpec(name="TEXT"), TensorSpec(name="CHOICES", row=ANY))

    @override
    def outputs(self, info: ModelInfo) -> tuple[TensorSpec, ...]:
        scores = TensorSpec(name="SCORES", datatype="FP32", row=ANY)
        return TensorSpec(name="CHOICE", datatype="INT64"), scores

    @override
    def check_size(self, inputs: Mapping[str, Rows], bounds: RequestConfig) -> None:
        inputs["CHOICES"].check_copies(len(inputs["TEXT"].texts), bounds, what="choices")

    @override
    def fields(self, inputs: Mapping[str, Rows]) -> dict[str, Any]:
        prompts = inputs["TEXT"].texts
        choices = inputs["CHOICES"].each(len(prompts))
        pairs = zip(prompts, choices, strict=True)
        return {"input": [{"prompt": prompt, "choices": options} for prompt, options in pairs]}

    @override
    def tensor(
        self, wanted: RequestedOutput, results: _Results, body: Body, info: ModelInfo
    ) -> OutputTensor:
        found = [choice_in(result) for result in results]
        if wanted.name == "CHOICE":
            values = [one.choice for one in found]
            return IntegerTensor(name=wanted.name, shape=(len(found), 1), values=values)
        options = [item.choices for item in body.items()]
        return _score_tensor(wanted, [one.scores for one in found], options)


class EmbedTensors(TaskTensors):
    """Turns texts into vectors."""

    task = Task.EMBED
    body = EmbedBody
    parameters = ("truncate", "normalize", "dimensions", "prompt_name")

    @override
    def outputs(self, info: ModelInfo) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name="EMBEDDING", datatype="FP32", row=info.dimensions or ANY),)

    @override
    def tensor(
        self, wanted: RequestedOutput, results: _Results, body: Body, info: ModelInfo
    ) -> OutputTensor:
        size = bytes(floats_as_json(results[0])).count(b",") + 1
        shape = len(results), size
        return VectorTensor(name=wanted.name, shape=shape, results=results)


class RerankTensors(TaskTensors):
    """Scores the relevance of texts to a query."""

    task = Task.RERANK
    body = RerankBody
    parameters = ("truncate", "instruction")
    inputs = (TensorSpec(name="TEXT"), TensorSpec(name="QUERY"))

    @override
    def outputs(self, info: ModelInfo) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name="SCORE", datatype="FP32"),)

    @override
    def fields(self, inputs: Mapping[str, Rows]) -> dict[str, Any]:
        query = inputs["QUERY"].shared()
        if len(query) > 1:
            raise InvalidRequest(
                "The input `QUERY` must have one text, which all elements of `TEXT` share."
            )
        return {"query": query[0], "documents": inputs["TEXT"].texts}

    @override
    def tensor(
        self, wanted: RequestedOutput, results: _Results, body: Body, info: ModelInfo
    ) -> OutputTensor:
        values = [score_in(result) for result in results]
        return FloatTensor(name=wanted.name, shape=(len(values), 1), values=values)


class EntitiesTensors(TaskTensors):
    """Finds named entities. An output row is a JSON list of the entities in a text.

    `LABELS` are the types to find; for models that find entities of any type.
    """

    task = Task.ENTITIES
    body = EntitiesBody
    inputs = (TensorSpec(name="TEXT"), TensorSpec(name="LABELS", row=ANY, is_optional=True))
    parameters = ("truncate", "aggregation", "threshold", "flat", "multi_label")

    @override
    def outputs(self, info: ModelInfo) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name="ENTITIES"),)

    @override
    def fields(self, inputs: Mapping[str, Rows]) -> dict[str, Any]:
        labels = {"labels": inputs["LABELS"].shared()} if "LABELS" in inputs else {}
        return super().fields(inputs) | labels

    @override
    def tensor(
        self, wanted: RequestedOutput, results: _Results, body: Body, info: ModelInfo
    ) -> OutputTensor:
        texts = [_encode(_decode(result)["entities"]).decode() for result in results]
        return TextTensor(name=wanted.name, shape=(len(texts), 1), texts=texts)


class AnswerTensors(TaskTensors):
    """Finds the answers to questions. An output row is a JSON list of the answers in a text.

    Several texts may share a question.
    """

    task = Task.ANSWER
    body = AnswerBody
    inputs = (TensorSpec(name="TEXT"), TensorSpec(name="QUESTION"))
    parameters = ("truncate", *AnswerParameters.__struct_fields__)

    @override
    def outputs(self, info: ModelInfo) -> tuple[TensorSpec, ...]:
        return TensorSpec(name="ANSWERS"), TensorSpec(name="NO_ANSWER_SCORE", datatype="FP32")

    @override
    def check_size(self, inputs: Mapping[str, Rows], bounds: RequestConfig) -> None:
        inputs["QUESTION"].check_copies(len(inputs["TEXT"].texts), bounds, what="questions")

    @override
    def fields(self, inputs: Mapping[str, Rows]) -> dict[str, Any]:
        texts = inputs["TEXT"].texts
        questions = inputs["QUESTION"].each(len(texts))
        if len(questions[0]) > 1:
            raise InvalidRequest("The input `QUESTION` must have one text in each row.")
        pairs = zip(questions, texts, strict=True)
        return {"input": [{"question": row[0], "context": text} for row, text in pairs]}

    @override
    def tensor(
        self, wanted: RequestedOutput, results: _Results, body: Body, info: ModelInfo
    ) -> OutputTensor:
        found, shape = [_decode(result) for result in results], (len(results), 1)
        if wanted.name == "ANSWERS":
            texts = [_encode(one["answers"]).decode() for one in found]
            return TextTensor(name=wanted.name, shape=shape, texts=texts)
        values = [one["no_answer_score"] for one in found]
        return FloatTensor(name=wanted.name, shape=shape, values=values)


class AlgorithmTensors(TaskTensors):
    """Runs the algorithm that a model's owner has written. Accepts any parameters.

    Items and results are JSON.
    """

    task = Task.INFER
    body = InferBody
    items = "INPUT"
    inputs = (TensorSpec(name="INPUT"),)

    @override
    def outputs(self, info: ModelInfo) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name="OUTPUT"),)

    @override
    def fields(self, inputs: Mapping[str, Rows]) -> dict[str, Any]:
        return {"inputs": [_value(*each) for each in enumerate(inputs["INPUT"].texts)]}

    @override
    def tensor(
        self, wanted: RequestedOutput, results: _Results, body: Body, info: ModelInfo
    ) -> OutputTensor:
        texts = [result.decode() for result in results]
        return TextTensor(name=wanted.name, shape=(len(texts), 1), texts=texts)


TASK_TENSORS: dict[Task, TaskTensors] = {
    one.task: one
    for one in (
        ClassifyTensors(),
        ZeroShotTensors(),
        ChooseTensors(),
        RerankTensors(),
        EntitiesTensors(),
        AnswerTensors(),
        EmbedTensors(),
        AlgorithmTensors(),
    )
}
"""The tensors of each task. `tokenize` and `detokenize` have none, because they run no model."""


def tasks_of(info: ModelInfo) -> list[Task]:
    """Return the tasks of a model that the Open Inference Protocol can run."""
    return [task for task in info.tasks if task in TASK_TENSORS]


def _value(index: int, text: str) -> Any:
    try:
        return _decode(text.removeprefix(_BYTE_ORDER_MARK))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(
            f"Element {index} of the input `INPUT` is not valid JSON: {error}."
        ) from error


def _labelled(labels: int) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec(name="LABEL"),
        TensorSpec(name="SCORE", datatype="FP32"),
        TensorSpec(name="SCORES", datatype="FP32", row=labels),
    )


def _in_order(labels: Sequence[StoredLabel], order: Sequence[str]) -> list[float]:
    scores = {one.label: one.score for one in labels}
    return [scores.get(label, 0.0) for label in order]


def _score_tensor(
    wanted: RequestedOutput, rows: Sequence[Sequence[float]], labels: Sequence[Sequence[str]]
) -> OutputTensor:
    """Return each row's scores. If `wanted` has `classification`, return each row's best labels.

    `labels` holds a list of labels for each row, or a single list for all rows.
    """
    size = len(rows[0])
    if not wanted.classification:
        values = [value for row in rows for value in row]
        return FloatTensor(name=wanted.name, shape=(len(rows), size), values=values)
    best = min(wanted.classification, size)
    texts = []
    for row, names in zip(rows, cycle(labels), strict=False):
        order = sorted(range(size), key=lambda index: -row[index])[:best]
        texts += [f"{row[index]:f}:{index}:{names[index]}" for index in order]
    return TextTensor(name=wanted.name, shape=(len(rows), best), texts=texts)
