"""Defines pure functions that derive a model's new plan from the present plan."""

from collections.abc import Mapping

import msgspec

from sluicegate.gateway.errors import NotFound
from sluicegate.gateway.ledger.types import StoredPlan
from sluicegate.gateway.operations.plan_changes import Derive
from sluicegate.wire.plans import Serving, Shadow


def split_by(revisions: Mapping[str, int]) -> Derive:
    """Return a function that derives a plan with items divided among `revisions` by weight.

    If the split contains the shadow revision, that revision stops being a shadow.
    """

    def derive(now: Serving, _: StoredPlan) -> Serving:
        shadow = now.shadow
        if shadow is not None and shadow.revision in revisions:
            shadow = None
        return _plan(now, dict(revisions), shadow)

    return derive


def mirror_to(shadow: Shadow) -> Derive:
    """Return a function that derives a plan in which a shadow revision gets copies of items."""

    def derive(now: Serving, _: StoredPlan) -> Serving:
        return _plan(now, now.revisions, shadow)

    return derive


def without_shadow(now: Serving, stored: StoredPlan) -> Serving | None:
    """Return the present plan without its shadow revision."""
    if now.shadow is None:
        return stored.plan
    return msgspec.structs.replace(now, shadow=None)


def without_plan(_now: Serving, _stored: StoredPlan) -> Serving | None:
    """Return `None`, which means no plan.

    Without a plan, the model's `serving.yaml` or its newest revision decides.
    """
    return None


def as_before(model: str) -> Derive:
    """Return a function that returns the plan before the last change of the traffic split."""

    def derive(_: Serving, stored: StoredPlan) -> Serving | None:
        if not stored.version:
            raise NotFound(f"`{model}` has no change that can be rolled back")
        return stored.previous

    return derive


def _plan(now: Serving, revisions: dict[str, int] | None, shadow: Shadow | None) -> Serving:
    """Return a plan. Preloaded revisions stay preloaded, unless the plan itself uses them."""
    named = {*(revisions or {}), *([shadow.revision] if shadow is not None else [])}
    return Serving(
        revisions=revisions,
        preload=[number for number in now.preload if number not in named],
        shadow=shadow,
    )
