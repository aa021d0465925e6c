"""Derives plans of how a model is served from how it is served now."""

from collections.abc import Mapping

import msgspec

from backends.plans import Serving, Shadow
from gateway.admin.plan_changes import Derive
from gateway.errors import NotFound
from gateway.ledger.types import StoredPlan


def split_by(revisions: Mapping[str, int]) -> Derive:
    """Share items by weight; a shadow that answers from now on is none any more."""

    def derive(now: Serving, _: StoredPlan) -> Serving:
        shadow = now.shadow
        if shadow is not None and shadow.revision in revisions:
            shadow = None
        return _plan(now, dict(revisions), shadow)

    return derive


def mirror_to(shadow: Shadow) -> Derive:
    """Mirror a share of the items to a revision."""

    def derive(now: Serving, _: StoredPlan) -> Serving:
        return _plan(now, now.revisions, shadow)

    return derive


def without_shadow(now: Serving, stored: StoredPlan) -> Serving | None:
    """Mirror items no more."""
    if now.shadow is None:
        return stored.plan
    return msgspec.structs.replace(now, shadow=None)


def as_folder_says(_now: Serving, _stored: StoredPlan) -> Serving | None:
    """Serve the model by its `serving.yaml`, or its newest revision."""
    return None


def as_before(model: str) -> Derive:
    """Serve the model as before the last change of its revisions."""

    def derive(_: Serving, stored: StoredPlan) -> Serving | None:
        if not stored.version:
            raise NotFound(f"no change of `{model}` can be rolled back: there was none")
        return stored.previous

    return derive


def _plan(now: Serving, revisions: dict[str, int] | None, shadow: Shadow | None) -> Serving:
    """Return a plan; what was kept warm stays so unless it answers now or is the shadow."""
    named = {*(revisions or {}), *([shadow.revision] if shadow is not None else [])}
    return Serving(
        revisions=revisions,
        preload=[number for number in now.preload if number not in named],
        shadow=shadow,
    )
