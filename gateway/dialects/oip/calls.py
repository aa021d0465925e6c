"""Turns requests of tensors into requests of the gateway, and answers into tensors.

A transport makes a `TensorRequest` of what it received. `tensor_call` finds out what is asked of
the model, and returns a `TensorCall`: it is the `RequestBody` of an `InferenceRoute`, with `items`
and `request`, and its `outputs` are the tensors of an answer.
"""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from backends.protocol import Task
from gateway.api.json_bounds import check_item_count, check_json_size
from gateway.api.schemas import Body
from gateway.config.document import RequestConfig
from gateway.dialects.oip.task_tensors import TASK_TENSORS, Rows, TaskTensors, tasks_of
from gateway.dialects.oip.tensors import InputTensor, OutputTensor, RequestedOutput
from gateway.errors import InvalidRequest, TaskNotSupported
from gateway.http.body_decoding import convert_body
from gateway.types import Answer, InferenceRequest, ServedModel

# What clients and servers of the protocol say to each other; none of it shapes an answer here.
_IGNORED = frozenset({"binary_data_output", "content_type", "headers", "priority", "timeout"})
_TASK = "task"
# Inputs that tell a task by themselves.
_BY_INPUT = {
    "QUERY": Task.RERANK,
    "LABELS": Task.ZERO_SHOT,
    "CHOICES": Task.CHOOSE,
    "TEXT_PAIR": Task.CLASSIFY,
    "INPUT": Task.INFER,
}
_OF_TEXTS = (Task.CLASSIFY, Task.ENTITIES, Task.EMBED)


class TensorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what is asked of a model. Without `outputs`, all of the task are wanted."""

    inputs: Sequence[InputTensor]
    outputs: Sequence[RequestedOutput] = ()
    parameters: dict[str, Any] = {}
    id: str = ""


class TensorCall(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a checked request, as the native body that says the same."""

    model: str
    """What the gateway names the model by."""
    version: str
    """What its answer names the version by; empty where several share the items."""
    id: str
    body: Body
    tensors: TaskTensors
    wanted: tuple[RequestedOutput, ...]

    def items(self) -> list[Any]:
        """Return the items."""
        return self.body.items()

    def request(self, model: str = "") -> InferenceRequest:
        """Return the request that the native route would make of it."""
        return self.body.request(self.model)

    def outputs(self, answer: Answer) -> list[OutputTensor]:
        """Return the outputs that are wanted, in the order of the request."""
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
    """Return what is asked of a `model` that is `served` (`None`: it is refused later on).

    `model` and `version` are as `gateway.dialects.oip.models.find_model` returns them. An input may
    have `max_values` elements.

    Raises:
        TaskNotSupported: the model does not answer the task.
        InvalidRequest: an input, output or parameter is not one of the task, or does not fit it.
        PayloadTooLarge: an input has more elements, or would have if each item had its own.
        MsgspecError: a parameter, or an element, is not what the native route takes.
    """
    if served is None:
        return _nobody(model, version)
    tasks = tasks_of(served.info)
    tensors = TASK_TENSORS[_task(request, tasks)]
    if tensors.task not in tasks:
        raise TaskNotSupported(
            f"The model `{model}` answers {', '.join(tasks)}, not {tensors.task}: see"
            " its inputs in its metadata."
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


def _nobody(model: str, version: str) -> TensorCall:
    """Return a request to a model that is not served, which is refused as every other one."""
    tensors = TASK_TENSORS[Task.EMBED]
    body = msgspec.convert({"model": model, "input": ["-"]}, tensors.body)
    return TensorCall(model=model, version=version, id="", body=body, tensors=tensors, wanted=())


def _task(request: TensorRequest, tasks: Collection[Task]) -> Task:
    """Return which task is asked for: by the parameter `task`, the inputs, or the model's only one.

    Raises:
        InvalidRequest: it is not one that a model answers, or several might be meant.
    """
    if (named := request.parameters.get(_TASK)) is not None:
        if not isinstance(named, str) or named not in TASK_TENSORS:
            raise InvalidRequest(f"The parameter `task` must be one of {', '.join(TASK_TENSORS)}.")
        return Task(named)
    for tensor in request.inputs:
        if tensor.name in _BY_INPUT:
            return _BY_INPUT[tensor.name]
    found = [task for task in _OF_TEXTS if task in tasks]
    if len(found) > 1:
        names = " or ".join(found)
        raise InvalidRequest(f"The model answers {names}: say which by the parameter `task`.")
    # Where it needs more than texts, the first task says which input is missing.
    return found[0] if found else next(iter(tasks), Task.EMBED)


def _parameters(request: TensorRequest, tensors: TaskTensors) -> dict[str, Any]:
    """Return the fields of the native body that are set by parameters.

    Raises:
        InvalidRequest: there is one that the task does not take.
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
                f"The output `{wanted.name}` has no `classification`; `SCORES` has, of labels or"
                " choices, with a number from 1 on."
            )
    if len({wanted.name for wanted in request.outputs}) < len(request.outputs):
        raise InvalidRequest("An output is named twice.")
    return tuple(request.outputs)


def _check_known(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise InvalidRequest(f"The {kind} `{name}` is unknown here; {_listed(kind, known)}.")


def _listed(kind: str, known: Sequence[str]) -> str:
    names = ", ".join([f"`{name}`" for name in known])
    return f"this task takes the {kind}s {names}" if names else f"there is no more {kind}"
