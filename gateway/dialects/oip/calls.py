"""Converts tensor requests to native requests, and results to tensors.

A transport builds a `TensorRequest` from the bytes that it received. `tensor_call` determines the
task and returns a `TensorCall`. An `InferenceRoute` uses the `TensorCall` as its `RequestBody`. The
method `TensorCall.outputs` returns the tensors of the response.
"""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from sluicegate.gateway.api.json_bounds import check_item_count, check_json_size
from sluicegate.gateway.api.schemas import Body
from sluicegate.gateway.config.document import RequestConfig
from sluicegate.gateway.dialects.oip.task_tensors import (
    TASK_TENSORS,
    Rows,
    TaskTensors,
    tasks_of,
)
from sluicegate.gateway.dialects.oip.tensors import InputTensor, OutputTensor, RequestedOutput
from sluicegate.gateway.errors import InvalidRequest, TaskNotSupported
from sluicegate.gateway.http.body_decoding import convert_body
from sluicegate.gateway.types import Answer, InferenceRequest, ServedModel
from sluicegate.wire.protocol import Task

# Parameters of the protocol that do not affect the results.
_IGNORED = frozenset({"binary_data_output", "content_type", "headers", "priority", "timeout"})
_TASK = "task"
# If a request has one of these inputs, the input identifies the task of the request.
_TEXT_TASKS = (Task.CLASSIFY, Task.ENTITIES, Task.EMBED)


class TensorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a request in the form of tensors.

    If `outputs` is empty, the response has all outputs of the task.
    """

    inputs: Sequence[InputTensor]
    outputs: Sequence[RequestedOutput] = ()
    parameters: dict[str, Any] = {}
    id: str = ""


class TensorCall(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a validated request and the equivalent native body."""

    model: str
    """The name of the model in the gateway."""
    version: str
    """The version in the response. It is empty if a traffic split divides the items among
    revisions."""
    id: str
    body: Body
    tensors: TaskTensors
    wanted: tuple[RequestedOutput, ...]

    def items(self) -> list[Any]:
        """Return the items."""
        return self.body.items()

    def request(self, model: str = "") -> InferenceRequest:
        """Return the request of the native route."""
        return self.body.request(self.model)

    def outputs(self, answer: Answer) -> list[OutputTensor]:
        """Return the outputs that the request asks for, in the order of the request."""
        results = [outcome.result for outcome in answer.outcomes]
        info = answer.model.info
        return [self.tensors.tensor(one, results, self.body, info) for one in self.wanted]


def tensor_call(
    request: TensorRequest,
    *,
    served: ServedModel | None,
    model: str,
    version: str,
    bounds: RequestConfig,
) -> TensorCall:
    """Return the validated call to `model`. If `served` is `None`, return a placeholder.

    `served` is `None` if the model is not served. `model` and `version` come from
    `gateway.dialects.oip.models.find_model`. `bounds` limits the number of elements of an input.

    Raises:
        TaskNotSupported: the model does not have the task.
        InvalidRequest: the task has no such input, output or parameter, or a value is
            invalid.
        PayloadTooLarge: an input has too many elements. An element that is copied for each
            item counts once for each copy.
        MsgspecError: a parameter or an element is invalid for the native route.
    """
    if served is None:
        return _unserved_call(model, version)
    tasks = tasks_of(served.info)
    tensors = TASK_TENSORS[_task(request, tasks)]
    if tensors.task not in tasks:
        raise TaskNotSupported(
            f"The model `{model}` has the tasks {', '.join(tasks)}, not {tensors.task}; its"
            " metadata lists its inputs."
        )
    known = [spec.name for spec in tensors.inputs]
    missing = [spec.name for spec in tensors.inputs if not spec.is_optional]
    inputs: dict[str, Rows] = {}
    for tensor in request.inputs:
        _check_known("input", tensor.name, [name for name in known if name not in inputs])
        texts = tensor.texts(most=bounds.max_values)
        inputs[tensor.name] = Rows(name=tensor.name, texts=texts, count=tensor.rows)
    for name in missing:
        if name not in inputs:
            raise InvalidRequest(f"The input `{name}` is missing; {_listed('input', known)}.")
    items = inputs[tensors.items].texts
    check_item_count(items, bounds.max_items)
    if tensors.task is Task.INFER:
        check_json_size("\n".join(items).encode(), max_values=bounds.max_values)
    tensors.check_size(inputs, bounds)
    fields = tensors.fields(inputs) | _parameters(request, tensors)
    if tensors.task is not Task.INFER:
        fields["model"] = model
    return TensorCall(
        model=model,
        version=version,
        id=request.id,
        body=convert_body(fields, tensors.body),
        tensors=tensors,
        wanted=_wanted(request, tensors, served),
    )


def _unserved_call(model: str, version: str) -> TensorCall:
    """Return a placeholder for a call to an unserved model. The request path refuses the call."""
    tensors = TASK_TENSORS[Task.EMBED]
    body = msgspec.convert({"model": model, "input": ["-"]}, tensors.body)
    return TensorCall(model=model, version=version, id="", body=body, tensors=tensors, wanted=())


def _task(request: TensorRequest, tasks: Collection[Task]) -> Task:
    """Return the requested task. The parameter `task`, the inputs or the model determine it.

    Raises:
        InvalidRequest: the parameter names no task, or the model has several tasks for texts.
    """
    if (named := request.parameters.get(_TASK)) is not None:
        if not isinstance(named, str) or named not in TASK_TENSORS:
            raise InvalidRequest(f"The parameter `task` must be one of {', '.join(TASK_TENSORS)}.")
        return Task(named)
    for tensor in request.inputs:
        known = [task for task, tensors in TASK_TENSORS.items() if tensors.has_own(tensor.name)]
        if known:
            return next((task for task in known if task in tasks), known[0])
    found = [task for task in _TEXT_TASKS if task in tasks]
    if len(found) > 1:
        names = " or ".join(found)
        raise InvalidRequest(
            f"The model has the tasks {names}: choose one with the parameter `task`."
        )
    # If the request lacks inputs of the first task, the caller of this function reports the missing
    # inputs.
    return found[0] if found else next(iter(tasks), Task.EMBED)


def _parameters(request: TensorRequest, tensors: TaskTensors) -> dict[str, Any]:
    """Return the fields of the native body that the request's parameters set.

    Raises:
        InvalidRequest: the task does not have one of the parameters.
    """
    given = {
        name: value
        for name, value in request.parameters.items()
        if name not in _IGNORED and name != _TASK
    }
    if tensors.task is Task.INFER:
        truncate = {"truncate": given.pop("truncate")} if "truncate" in given else {}
        return {"parameters": given, **truncate}
    for name in given:
        _check_known("parameter", name, tensors.parameters)
    return given


def _wanted(
    request: TensorRequest, tensors: TaskTensors, served: ServedModel
) -> tuple[RequestedOutput, ...]:
    specs = {spec.name: spec for spec in tensors.outputs(served.info)}
    if not request.outputs:
        return tuple([RequestedOutput(name=name) for name in specs])
    for wanted in request.outputs:
        _check_known("output", wanted.name, list(specs))
        if wanted.classification < 0 or (wanted.classification and wanted.name != "SCORES"):
            raise InvalidRequest(
                f"The output `{wanted.name}` does not support this `classification`; use a number"
                " from 1 on with the output `SCORES`."
            )
    if len({wanted.name for wanted in request.outputs}) < len(request.outputs):
        raise InvalidRequest("An output is named twice in `outputs`; name each output once.")
    return tuple(request.outputs)


def _check_known(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise InvalidRequest(
            f"The {kind} `{name}` is unknown or was given twice; {_listed(kind, known)}."
        )


def _listed(kind: str, known: Sequence[str]) -> str:
    names = ", ".join([f"`{name}`" for name in known])
    return f"this task also has the {kind}s {names}" if names else f"there is no further {kind}"
