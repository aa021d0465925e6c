"""Which models keys, limits, documents and purges may name."""

import difflib
from collections.abc import Iterable

from gateway.admin.active_document import ActiveDocumentReader
from gateway.admin.fleet_view import reported_backends
from gateway.config.checks import models_named
from gateway.config.document import Document
from gateway.errors import ConfigurationError, DependencyUnavailable, InvalidRequest
from gateway.runtime.control import Control
from gateway.types import Rule


class ModelNameValidator:
    """The models that backends serve, and those that the active document names.

    A model to be served later is known once the document has it under `models`, as `planned`.
    """

    def __init__(self, *, control: Control, active: ActiveDocumentReader) -> None:
        self._control = control
        self._active = active

    async def names(self) -> frozenset[str] | None:
        """Return them; `None` while nobody can tell: no backend has been heard of."""
        try:
            return await valid_model_names(self._control, await self._active.document())
        except (ConfigurationError, DependencyUnavailable):
            return None

    async def check(self, models: Iterable[str], *, field: str) -> None:
        """Refuse names that no model has.

        Raises:
            InvalidRequest: the message names the first, and what to do.
        """
        known = await self.names()
        for name in models:
            if known is not None and name not in known:
                raise InvalidRequest(f"`{field}`: {explain_unknown_model(name, known)}")

    async def check_rules(self, rules: Iterable[Rule]) -> None:
        """Refuse limits of models that there are not.

        Raises:
            InvalidRequest: the message names the first, and what to do.
        """
        await self.check([rule.model for rule in rules if rule.model], field="limits")


async def valid_model_names(control: Control, document: Document | None) -> frozenset[str] | None:
    """Return the names of models that are known; `None` where no backend has been heard of.

    Raises:
        DependencyUnavailable: the state Redis cannot be reached.
    """
    seen = await reported_backends(control)
    served = {name for view in seen.values() for name in (*view.models, *view.problems)}
    if not served:
        return None
    return frozenset(served.union(() if document is None else models_named(document)))


def explain_unknown_model(name: str, known: Iterable[str]) -> str:
    """Return what to say of a model that nobody knows."""
    close = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean `{close[0]}`?" if close else "; `GET /admin/regions` lists them."
    return (
        f"no backend serves a model `{name[:80]}`{hint} One that is to be served later is put "
        "under `models` in the document first, with `planned: true`"
    )
