"""Serves the routes with which TEI's clients ask for a model's description and health."""

from typing import Any

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from sluicegate.gateway.api.metadata import AnyRequest, Models, Runtimes, principal_of
from sluicegate.gateway.api.openapi_parts import Content, Kind, Operation
from sluicegate.gateway.dialects.hugging_face_errors import HUGGING_FACE_ERRORS, TEI_ERRORS
from sluicegate.gateway.errors import DependencyUnavailable, ModelNotFound, RateLimited
from sluicegate.gateway.inference.visibility import model_not_found, visible_models
from sluicegate.gateway.types import ServedModel
from sluicegate.wire.protocol import ModelInfo, Task

_ERRORS = (RateLimited, DependencyUnavailable, ModelNotFound)
_ABOUT = {"model": {"description": "The name of a model.", "example": "minilm"}}


class TeiInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model in TEI's format."""

    model_id: str
    """The name of the model."""
    model_sha: str
    """The digest of the files that determine the model's results."""
    model_dtype: str
    """The numeric precision of the model, such as `fp32`."""
    model_type: dict[str, Any]
    """`classifier` with its labels, `embedding` or `reranker`. Empty if the model has other
    tasks."""
    max_input_length: int
    """The most tokens that the model reads of a text."""
    max_client_batch_size: int
    """The most items that a request may have."""
    auto_truncate: bool = True
    """Whether texts are truncated if the request does not say otherwise."""


def model_probes(path: str, dialect: str) -> list[HTTPRouteHandler]:
    """Return the routes below a model's path that describe the model."""

    async def describe(
        model: FromPath[str], request: AnyRequest, models: Models, runtimes: Runtimes
    ) -> TeiInfo:
        """Return a model, or status 404 if there is no model with this name."""
        found = _served(model, request, models, runtimes).info
        return TeiInfo(
            model_id=found.name,
            model_sha=found.revision,
            model_dtype=found.profile,
            model_type=_model_type(found),
            max_input_length=found.max_tokens,
            max_client_batch_size=runtimes.current.document.request.max_items,
        )

    return [
        get(f"{path}/{name}", opt=_route_options(dialect, name, summary))(describe)
        for name, summary in (("info", "What a model is"), ("health", "Whether a model is served"))
    ]


def _route_options(dialect: str, name: str, summary: str) -> dict[str, Operation]:
    operation = Operation(
        id=f"{dialect.replace('-', '_')}_{name}",
        summary=summary,
        tag=dialect,
        kind=Kind.LIMITED,
        errors=_ERRORS,
        error_format=TEI_ERRORS if dialect == "tei" else HUGGING_FACE_ERRORS,
        answers={200: (Content(summary="The model"),)},
        about=_ABOUT,
    )
    return {"operation": operation}


def _served(model: str, request: AnyRequest, models: Models, runtimes: Runtimes) -> ServedModel:
    visible = visible_models(models.models(), runtimes.current.document, principal_of(request))
    found = next((one for one in visible if one.info.name == model), None)
    if found is None:
        raise model_not_found(model, visible)
    return found


def _model_type(info: ModelInfo) -> dict[str, Any]:
    if Task.CLASSIFY in info.tasks and info.labels is not None:
        labels = dict(enumerate(info.labels))
        return {
            "classifier": {
                "id2label": {str(index): label for index, label in labels.items()},
                "label2id": {label: index for index, label in labels.items()},
            }
        }
    if Task.EMBED in info.tasks:
        return {"embedding": {}}
    return {"reranker": {}} if Task.RERANK in info.tasks else {}
