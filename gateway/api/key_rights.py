"""Tells what a key may do: which routes it may be used for, and which models it may know of."""

from gateway.config.document import Document, ModelConfig
from gateway.errors import PermissionDenied
from gateway.types import Principal, ServedModel

_DEFAULT_ENTRY = ModelConfig()


def covers(route: str, path: str) -> bool:
    """Tell whether a route of a key, all below it where it ends in `/*`, is that of `path`."""
    return path.startswith(route[:-1]) if route.endswith("/*") else path == route


def check_model(principal: Principal, name: str) -> None:
    """Check that a key may use a model, whether it is served or not.

    Raises:
        PermissionDenied: it may not.
    """
    if principal.models is not None and name not in principal.models:
        raise PermissionDenied(f"This key may not use the model `{name}`.")


def is_visible(model: ServedModel, document: Document, principal: Principal) -> bool:
    """Tell whether a key may know of a model."""
    name = model.info.name
    allowed = principal.models is None or name in principal.models
    # An encoder without tasks is there for what builds on it, and answers nobody.
    return allowed and bool(model.info.tasks) and document.models.get(name, _DEFAULT_ENTRY).enabled
