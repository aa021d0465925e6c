"""Changes a model's traffic split and shadow revision, and shows the results of revisions."""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from sluicegate.gateway.api.openapi_parts import Content
from sluicegate.gateway.errors import (
    ConfigurationError,
    Conflict,
    NotFound,
    PlanRefused,
    UpstreamUnavailable,
)
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import DONE, PENDING, Family
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.operations.plan_changes import ROLLBACK, PlanResult, change_plan
from sluicegate.gateway.operations.plan_steps import (
    as_before,
    mirror_to,
    split_by,
    without_plan,
    without_shadow,
)
from sluicegate.gateway.operations.revisions import ModelArms, read_revisions
from sluicegate.wire.plans import Revision, Shadow, Weight

_PATH = "/admin/models/{model}"
_ERRORS = (NotFound, Conflict, PlanRefused, ConfigurationError, UpstreamUnavailable)
_ANSWERS: Mapping[int, tuple[Content, ...]] = {
    200: (Content(type=PlanResult, summary=DONE),),
    202: (Content(type=PlanResult, summary=PENDING),),
}
FAMILY = Family(
    "operations",
    about={
        "model": {"description": "The name of a model.", "example": "sentiment"},
        "dry_run": {"description": "Check the change on every backend, and change nothing."},
    },
)


class SplitChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The traffic split of a model."""

    revisions: Annotated[dict[Revision, Weight], msgspec.Meta(min_length=1)]
    """The weight of each revision, by the revision's number."""


@FAMILY.operation(
    f"GET {_PATH}/arms",
    "The traffic split of a model, and the results of each revision",
    role=Role.VIEWER,
    errors=(NotFound, ConfigurationError, UpstreamUnavailable),
)
async def get_model_arms(context: OperationContext, model: str) -> ModelArms:
    """Return the traffic split of a model, and the results of each revision."""
    return await read_revisions(context, model)


@FAMILY.operation(
    f"PUT {_PATH}/split",
    "Divide the items of a model among revisions",
    role=Role.OPERATOR,
    errors=_ERRORS,
    example={"revisions": {"1": 90, "2": 10}},
    answers=_ANSWERS,
)
async def split_model(
    context: OperationContext, model: str, split: SplitChange, *, dry_run: bool = False
) -> PlanResult:
    """Divide the items of a model among revisions. Every backend checks the revisions first.

    If the split contains the shadow revision, that revision stops being a shadow.
    """
    return await change_plan(
        context, model, split_by(split.revisions), action="models.split", dry_run=dry_run
    )


@FAMILY.operation(
    f"DELETE {_PATH}/split",
    "Remove the operators' plan of a model",
    role=Role.OPERATOR,
    errors=_ERRORS,
    answers=_ANSWERS,
)
async def reset_model(
    context: OperationContext, model: str, *, dry_run: bool = False
) -> PlanResult:
    """Remove the operators' plan of a model. The model's folder then selects the revisions."""
    return await change_plan(context, model, without_plan, action="models.reset", dry_run=dry_run)


@FAMILY.operation(
    f"PUT {_PATH}/shadow",
    "Send copies of items to a shadow revision",
    role=Role.OPERATOR,
    errors=_ERRORS,
    example={"revision": "2", "share": 10},
    answers=_ANSWERS,
)
async def shadow_model(
    context: OperationContext, model: str, shadow: Shadow, *, dry_run: bool = False
) -> PlanResult:
    """Send copies of items to a shadow revision, and compare its results."""
    return await change_plan(
        context, model, mirror_to(shadow), action="models.shadow", dry_run=dry_run
    )


@FAMILY.operation(
    f"DELETE {_PATH}/shadow",
    "Remove the shadow of a model",
    role=Role.OPERATOR,
    errors=_ERRORS,
    answers=_ANSWERS,
)
async def end_shadow(context: OperationContext, model: str, *, dry_run: bool = False) -> PlanResult:
    """Remove the shadow of a model."""
    return await change_plan(
        context, model, without_shadow, action="models.shadow", dry_run=dry_run
    )


@FAMILY.operation(
    f"POST {_PATH}/rollback",
    "Undo the last change of a model's split",
    role=Role.OPERATOR,
    errors=_ERRORS,
    answers=_ANSWERS,
)
async def roll_back_model(
    context: OperationContext, model: str, *, dry_run: bool = False
) -> PlanResult:
    """Undo the last change of a model's split. Calling it twice does not undo two changes.

    A shadow that was added after the last change of the split is removed.
    """
    return await change_plan(context, model, as_before(model), action=ROLLBACK, dry_run=dry_run)
