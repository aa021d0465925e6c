"""Checks how a configuration document assigns models to pools of backends."""

import re
from collections.abc import Iterable, Iterator

from sluicegate.gateway.config.document import Document
from sluicegate.gateway.config.shape import ConfigFinding
from sluicegate.wire.plans import NO_MODEL, is_assigned

_PATTERN = re.compile(r"[a-z0-9._*?\[\]!-]{1,64}")


def pool_findings(document: Document) -> Iterator[ConfigFinding]:
    """Yield each pattern that no model name can match, and each model without a backend."""
    for index, region in enumerate(document.regions):
        for number, pool in enumerate(region.pools):
            for place, pattern in enumerate(pool.models):
                if not _PATTERN.fullmatch(pattern) or pattern == NO_MODEL:
                    path = ("regions", index, "pools", number, "models", place)
                    detail = f"`{pattern}` must be a model's name or a pattern such as `toxic-*`"
                    yield ConfigFinding(path, detail)
    wanted = [name for name, entry in document.models.items() if not entry.planned]
    for name in unassigned_models(document, wanted):
        yield ConfigFinding(("models", name), explain_unassigned(name))


def unassigned_models(document: Document, names: Iterable[str]) -> Iterator[str]:
    """Yield the models in `names` that no pool lists, so that no backend would serve them.

    Models that the document disables are skipped.
    """
    pools = [pool.models for region in document.regions for pool in region.pools]
    if not pools or not all(pools):
        return
    for name in names:
        entry = document.models.get(name)
        is_on = entry is None or entry.enabled
        if is_on and not any(is_assigned(name, models) for models in pools):
            yield name


def explain_unassigned(name: str) -> str:
    """Return the error message for a model without a backend."""
    return (
        f"no backend would serve `{name}`: add it to `models` of a pool in `regions`, or set "
        f"`models.{name}.enabled` to `false`"
    )
