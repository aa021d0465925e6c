"""Compares two configuration documents, and finds the tenants whom the changes affect."""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from sluicegate.gateway.config.checks import ANY_MODEL
from sluicegate.gateway.config.difference import FieldChange, find_changes
from sluicegate.gateway.config.document import Document, PriceConfig
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.types import TenantCount

if TYPE_CHECKING:  # see `gateway.operations.context`
    from sluicegate.gateway.ledger.affected_tenants import AffectedTenants

MAX_CHANGES = 1000


class ModelNameChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The names of the models that a document adds, removes and changes."""

    added: list[str]
    removed: list[str]
    changed: list[str]


class DocumentDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between a document and the active document."""

    changes: list[FieldChange]
    """The fields that differ, but at most 1,000 of them."""
    omitted: int
    """The number of differing fields that `changes` leaves out."""
    models: ModelNameChanges
    limits: list[str]
    """The limits that change, such as `limits.tenant[minute]`."""
    prices: list[str]
    """The models whose prices change. `*` stands for all models without their own price."""
    tenants_by_limits: TenantCount | None
    """The tenants whose limits change, or `null` if the ledger cannot be reached."""
    tenants_by_prices: TenantCount | None
    """The tenants whose usage this month includes a model with a changed price, or `null` if the
    ledger cannot be reached."""


async def describe_difference(
    before: Document, after: Document, tenants: "AffectedTenants"
) -> DocumentDifference:
    """Return how `after` differs from `before`, and which tenants this affects."""
    # In a thread, because comparing 20,000 models takes a second.
    found = await asyncio.to_thread(_compare, before, after)
    prices = found.prices
    by_limits = await _counted(
        partial(
            tenants.by_limits,
            of_tenants=before.limits.tenant != after.limits.tenant,
            of_keys=before.limits.key != after.limits.key,
        )
    )
    all_but = _priced(before, after) if ANY_MODEL in prices else None
    by_prices = await _counted(partial(tenants.by_models, prices, all_but=all_but))
    return msgspec.structs.replace(found, tenants_by_limits=by_limits, tenants_by_prices=by_prices)


async def _counted(count: Callable[[], TenantCount]) -> TenantCount | None:
    try:
        return await asyncio.to_thread(count)
    except DependencyUnavailable:
        return None


def _compare(before: Document, after: Document) -> DocumentDifference:
    """Compare the documents. The caller adds the affected tenants to the result."""
    found = find_changes(before, after)
    return DocumentDifference(
        changes=list(islice(found, MAX_CHANGES)),
        omitted=sum(1 for _ in found),
        models=_changed_models(before, after),
        limits=_changed_limits(before, after),
        prices=_changed_prices(before.prices, after.prices),
        tenants_by_limits=None,
        tenants_by_prices=None,
    )


def _changed_models(before: Document, after: Document) -> ModelNameChanges:
    return ModelNameChanges(
        added=sorted(after.models.keys() - before.models.keys()),
        removed=sorted(before.models.keys() - after.models.keys()),
        changed=sorted(
            name
            for name, entry in after.models.items()
            if name in before.models and before.models[name] != entry
        ),
    )


def _changed_limits(before: Document, after: Document) -> list[str]:
    def limits(document: Document) -> dict[str, object]:
        models = document.models.items()
        return {f"models.{name}.limits": entry.limits for name, entry in models if entry.limits}

    of_models = find_changes(limits(before), limits(after), "")
    paths = [change.path.removeprefix(".") for change in of_models]
    return [*(one.path for one in find_changes(before.limits, after.limits, "limits")), *paths]


def _changed_prices(before: tuple[PriceConfig, ...], after: tuple[PriceConfig, ...]) -> list[str]:
    return sorted({entry.model for entry in {*before} ^ {*after}})


def _priced(before: Document, after: Document) -> set[str]:
    """Return the models that have their own price in at least one of the documents."""
    return {entry.model for entry in (*before.prices, *after.prices)} - {ANY_MODEL}
