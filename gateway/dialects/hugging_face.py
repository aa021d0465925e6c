"""Implements the routes for Hugging Face's `InferenceClient`. Each model has its own path."""

from collections.abc import Mapping
from typing import Any

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from sluicegate.gateway.api.key_rights import covers
from sluicegate.gateway.api.openapi_parts import Operation
from sluicegate.gateway.dialects.base import dialect_operation
from sluicegate.gateway.dialects.hugging_face_errors import HUGGING_FACE_ERRORS
from sluicegate.gateway.dialects.hugging_face_tasks import (
    PIPELINE_BY_FIELD,
    PIPELINES,
    FeatureExtractionInputs,
    ModelCall,
)
from sluicegate.gateway.dialects.tei_info import model_probes
from sluicegate.gateway.errors import InvalidRequest, TaskNotSupported
from sluicegate.gateway.http.body_decoding import BodyDecoder, convert_body
from sluicegate.gateway.types import Answer, RequestId, Usage
from sluicegate.wire.protocol import Task

_decode = BodyDecoder(dict[str, Any])
_BY_TASK = {PIPELINES[name][0]: name for name in reversed(PIPELINES)}
_TEXT_TASKS = (Task.CLASSIFY, Task.ENTITIES, Task.EMBED)


class HuggingFaceBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run a model's task, as `InferenceClient` does."""

    inputs: Any
    """A text, or a list of texts. For `sentence-similarity`: `{"source_sentence", "sentences"}`.
    For `text-ranking`: `{"query", "texts"}`. For `question-answering`: `{"question", "context"}`,
    or a list of them."""
    parameters: dict[str, Any] = {}
    """The task's parameters. They may also be fields beside `inputs`."""
    options: dict[str, Any] = {}
    """Ignored."""


class HuggingFaceRoute(InferenceRoute):
    """Serves `POST /models/{model}`."""

    path = "/models/{model:path}"
    task = Task.CLASSIFY
    errors = HUGGING_FACE_ERRORS
    has_other_methods = True
    reads_models = True

    @override
    def decode(self, source: BodySource) -> ModelCall:
        fields = given_fields(source.raw)
        model = self._model_name(source)
        served = source.served(model)
        if served is None:
            return unserved_call(model)
        pipeline = self._pipeline(source, fields, served.info.tasks)
        return ModelCall(model, convert_body(fields, PIPELINES[pipeline][1]))

    def _model_name(self, source: BodySource) -> str:
        """Return the gateway's name of the model in the path.

        A name on Hugging Face's hub is `owner/model`. The owner is dropped. Exceptions: a model is
        served under the full name, or the API key does not permit the route of the name without its
        owner. Without the second exception, a key that permits only the route `/models/a` could
        reach the model `b` with the path `/models/a/b`.
        """
        given = source.parameters["model"]
        name = given.rpartition("/")[2]
        if name == given or source.models.model(given) is not None:
            return given
        routes = None if source.principal is None else source.principal.routes
        path = self.template.format_map({**source.parameters, "model": name})
        is_covered = routes is None or any(
            covers(route, path) or route.startswith(f"/models/{given}") for route in routes
        )
        return name if is_covered else given

    def _pipeline(self, source: BodySource, fields: dict[str, Any], tasks: list[Task]) -> str:
        """Return the name of the requested task."""
        if "candidate_labels" in fields:
            finds = Task.ENTITIES in tasks and Task.ZERO_SHOT not in tasks
            return "token-classification" if finds else "zero-shot-classification"
        inputs = fields.get("inputs")
        if isinstance(inputs, list) and inputs:
            inputs = inputs[0]
        if isinstance(inputs, dict):
            for name, pipeline in PIPELINE_BY_FIELD.items():
                if name in inputs:
                    return pipeline
        return _BY_TASK[single_task(tasks, _TEXT_TASKS)]

    @override
    def encode(
        self, body: ModelCall, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        return Rendered(JSON, body.inputs.write(answer))


class HuggingFacePipelineRoute(HuggingFaceRoute):
    """Serves `POST /models/{model}/pipeline/{pipeline}`. The path names the task."""

    path = "/models/{model:path}/pipeline/{pipeline}"

    @override
    def _pipeline(self, source: BodySource, fields: dict[str, Any], tasks: list[Task]) -> str:
        pipeline = source.parameters["pipeline"]
        if pipeline not in PIPELINES:
            names = ", ".join(PIPELINES)
            raise TaskNotSupported(f"The task `{pipeline}` is not supported; use one of {names}.")
        return pipeline


def given_fields(raw: bytes) -> dict[str, Any]:
    """Return the fields of a body together with the fields of its `parameters`.

    Fields with the value `null` are left out, because clients send `null` for omitted fields.

    Raises:
        MsgspecError: the body is not a JSON object.
        InvalidRequest: `parameters` is not an object, or a field is given twice.
    """
    fields = _decode(raw)
    fields.pop("options", None)
    given = fields.pop("parameters", None) or {}
    if not isinstance(given, dict):
        raise InvalidRequest("`parameters` must be an object; leave it out, or send its fields.")
    beside, inside = (
        {name: value for name, value in each.items() if value is not None}
        for each in (fields, given)
    )
    if twice := beside.keys() & inside.keys():
        name = min(twice)
        raise InvalidRequest(f"`{name}` is given twice, in `parameters` and outside; send it once.")
    return beside | inside


def unserved_call(model: str) -> ModelCall:
    """Return a placeholder for a call to a model that is not served.

    The gateway refuses the call later, when it processes the request.
    """
    return ModelCall(model, FeatureExtractionInputs(inputs="-"))


def single_task(tasks: list[Task], known: tuple[Task, ...]) -> Task:
    """Return the only task that is in both `tasks` and `known`.

    Raises:
        TaskNotSupported: the model has no task in `known`.
        InvalidRequest: the model has several tasks in `known`.
    """
    found = [task for task in known if task in tasks]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join([_BY_TASK[task] for task in found])
        raise InvalidRequest(
            f"The model has the tasks {names}: add `/pipeline/{{task}}` to the path."
        )
    if Task.ZERO_SHOT in tasks:
        raise InvalidRequest("The model needs `candidate_labels`.")
    raise TaskNotSupported(
        f"The model has the tasks {', '.join(tasks) or '(none)'}, which this route does not"
        " support; see `GET /docs`."
    )


_MODEL, _PIPELINE = HuggingFaceRoute(), HuggingFacePipelineRoute()
_TEXT: Any = {"inputs": "a gorgeous, witty movie", "parameters": {"top_k": 1}}
_VECTOR: Any = {"inputs": ["a sentence"], "normalize": True}


def _operation(
    route: InferenceRoute, name: str, body: Any, answer: Any, path: Mapping[str, str]
) -> Operation:
    return dialect_operation(
        route,
        dialect="hugging-face",
        id=name,
        summary="Run a model, as Hugging Face's clients do",
        body=HuggingFaceBody,
        example=body,
        answer=list[Any],
        answer_example=answer,
        path_example=path,
    )


HUGGING_FACE = Dialect(
    name="hugging-face",
    title="As Hugging Face's client",
    description="The routes of Hugging Face's `InferenceClient`: use a model's URL here.",
    # The route whose path ends in a task comes first, because the pattern of the other route
    # matches such paths, too.
    routes={
        _PIPELINE: _operation(
            _PIPELINE,
            "hugging_face_pipeline",
            _VECTOR,
            [[0.0676, 0.0635]],
            dict(zip(_PIPELINE.names, ("minilm", "feature-extraction"), strict=True)),
        ),
        _MODEL: _operation(
            _MODEL,
            "hugging_face_model",
            _TEXT,
            [[{"label": "positive", "score": 0.98}]],
            {"model": "sentiment"},
        ),
    },
    handlers=model_probes("/models/{model:str}", "hugging-face"),
    errors=HUGGING_FACE_ERRORS,
    paths=("/models/",),
)
