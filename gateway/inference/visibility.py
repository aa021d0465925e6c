"""Tells which models a caller may know of, and which one a misspelt name may mean."""

from collections.abc import Iterable

from sluicegate.gateway.config.document import Document, ModelConfig
from sluicegate.gateway.config.spelling import closest
from sluicegate.gateway.errors import ModelNotFound
from sluicegate.gateway.types import Principal, ServedModel

_DEFAULT_ENTRY = ModelConfig()
_LIST = "GET /v1/models"


def is_visible(model: ServedModel, document: Document, principal: Principal) -> bool:
    """Tell whether a key may know of a model."""
    name = model.info.name
    allowed = principal.models is None or name in principal.models
    # An encoder without tasks serves only the models that build on it.
    return allowed and bool(model.info.tasks) and document.models.get(name, _DEFAULT_ENTRY).enabled


def visible_models(
    models: Iterable[ServedModel], document: Document, principal: Principal
) -> list[ServedModel]:
    """Return those of `models` that a key may know of."""
    return [model for model in models if is_visible(model, document, principal)]


def model_not_found(
    name: str, visible: Iterable[ServedModel], *, listed_by: str = _LIST
) -> ModelNotFound:
    """Return the error of a model that is not served; it may suggest one of `visible`."""
    meant = closest(name, [model.info.name for model in visible])
    hint = f"Did you mean `{meant}`? " if meant else ""
    return ModelNotFound(
        f"No model `{name}` is served. {hint}{listed_by} lists the models that are."
    )
