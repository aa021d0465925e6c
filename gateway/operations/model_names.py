"""Validates the model names in keys, limits, documents and purges."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sluicegate.gateway.config.checks import models_named
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.config.spelling import closest
from sluicegate.gateway.errors import ConfigurationError, DependencyUnavailable, InvalidRequest
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.operations.fleet_view import reported_backends
from sluicegate.gateway.types import Rule

if TYPE_CHECKING:  # see `gateway.operations.context`
    from sluicegate.gateway.runtime.control import Control


class ModelNameValidator:
    """Accepts models that backends serve, and models in the active configuration document.

    To use the name of a model before a backend serves it, list the model in the document with
    `planned: true`.
    """

    def __init__(self, *, control: "Control", active: ActiveDocumentReader) -> None:
        self._control = control
        self._active = active

    async def check(self, models: Iterable[str], *, field: str) -> None:
        """Refuse unknown models, but accept every name until a worker has reported a backend.

        Raises:
            InvalidRequest: a model is unknown. The message names the first one.
        """
        try:
            allowed = await valid_model_names(self._control, await self._active.document())
        except (ConfigurationError, DependencyUnavailable):
            return
        for name in models:
            if allowed is not None and name not in allowed:
                raise InvalidRequest(f"`{field}`: {explain_unknown_model(name, allowed)}")

    async def check_rules(self, rules: Iterable[Rule]) -> None:
        """Refuse limits for unknown models.

        Raises:
            InvalidRequest: a model is unknown. The message names the first one.
        """
        await self.check([rule.model for rule in rules if rule.model], field="limits")


async def valid_model_names(control: "Control", document: Document | None) -> frozenset[str] | None:
    """Return the valid model names, or `None` if no worker has reported a backend.

    Raises:
        DependencyUnavailable: the Redis with the gateway's state cannot be reached.
    """
    backends = await reported_backends(control)
    served = {name for view in backends.values() for name in (*view.models, *view.problems)}
    if not served:
        return None
    return frozenset(served.union(() if document is None else models_named(document)))


def explain_unknown_model(name: str, allowed: Iterable[str]) -> str:
    """Return the error message for an unknown model. It suggests the most similar valid name."""
    meant = closest(name, allowed)
    hint = (
        f"; did you mean `{meant}`?" if meant else "; `GET /admin/regions` lists the served models."
    )
    return (
        f"no backend serves a model `{name[:80]}`{hint} To use a model before it is served, add it"
        " to `models` in the document with `planned: true`"
    )
