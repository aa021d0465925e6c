"""Serves the operators' routes for a model's traffic split and shadow revision."""

from typing import Annotated

import msgspec
from litestar import Controller, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from gateway.admin.openapi import DONE, PENDING
from gateway.api.openapi_parts import Content, Json as Schema, Operation
from gateway.errors import (
    ConfigurationError,
    Conflict,
    DependencyUnavailable,
    NotFound,
    PlanRefused,
    UpstreamUnavailable,
)
from gateway.operations.operators import Operator, Role
from gateway.operations.plan_changes import ROLLBACK, Derive, PlanChanges, PlanResult
from gateway.operations.plan_steps import (
    as_before,
    mirror_to,
    split_by,
    without_plan,
    without_shadow,
)
from gateway.operations.revisions import ModelArms, RevisionReader
from wire.plans import Revision, Shadow, Weight

_ABOUT: dict[str, Schema] = {
    "model": {"description": "The name of a model.", "example": "sentiment"},
    "dry_run": {"description": "Check the change on every backend, and change nothing."},
}


class SplitChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The traffic split of a model."""

    revisions: Annotated[dict[Revision, Weight], msgspec.Meta(min_length=1)]
    """The weight of each revision, by the revision's number."""


def _operation(id_: str, summary: str, body: Content | None = None) -> Operation:
    return Operation(
        id=id_,
        summary=summary,
        tag="operations",
        errors=(
            *(NotFound, Conflict, PlanRefused, ConfigurationError),
            *(UpstreamUnavailable, DependencyUnavailable),
        ),
        body=() if body is None else (body,),
        answers={
            200: (Content(type=PlanResult, summary=DONE),),
            202: (Content(type=PlanResult, summary=PENDING),),
        },
        about=_ABOUT,
    )


class PlansController(Controller):
    """Changes which revisions of a model the backends serve."""

    path = "/admin/models/{model:str}"

    @get(
        "/arms",
        opt={"role": Role.VIEWER},
        operation=Operation(
            id="get_model_arms",
            summary="The traffic split of a model, and the results of each revision",
            tag="operations",
            errors=(NotFound, ConfigurationError, UpstreamUnavailable, DependencyUnavailable),
            answers={200: (Content(type=ModelArms),)},
            about={"model": _ABOUT["model"]},
        ),
    )
    async def revisions(
        self, model: FromPath[str], revision_reader: NamedDependency[RevisionReader]
    ) -> ModelArms:
        """Return the traffic split of a model, and the results of each revision."""
        return await revision_reader.read(model)

    @put(
        "/split",
        opt={"role": Role.OPERATOR},
        operation=_operation(
            "split_model",
            "Divide the items of a model among revisions",
            Content(example={"revisions": {"1": 90, "2": 10}}),
        ),
    )
    async def split(
        self,
        model: FromPath[str],
        data: JSONBody[SplitChange],
        plan_changes: NamedDependency[PlanChanges],
        operator: NamedDependency[Operator],
        dry_run: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
    ) -> Response[PlanResult]:
        """Divide the items of a model among revisions. Every backend checks the revisions first.

        If the split contains the shadow revision, that revision stops being a shadow.
        """
        return await _answer(
            plan_changes,
            model,
            split_by(data.revisions),
            "models.split",
            actor=operator.name,
            dry_run=dry_run,
        )

    @delete(
        "/split",
        status_code=200,
        opt={"role": Role.OPERATOR},
        operation=_operation("reset_model", "Remove the operators' plan of a model"),
    )
    async def reset(
        self,
        model: FromPath[str],
        plan_changes: NamedDependency[PlanChanges],
        operator: NamedDependency[Operator],
        dry_run: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
    ) -> Response[PlanResult]:
        """Remove the operators' plan of a model. The model's folder then selects the revisions."""
        return await _answer(
            plan_changes,
            model,
            without_plan,
            "models.reset",
            actor=operator.name,
            dry_run=dry_run,
        )

    @put(
        "/shadow",
        opt={"role": Role.OPERATOR},
        operation=_operation(
            "shadow_model",
            "Send copies of items to a shadow revision",
            Content(example={"revision": "2", "share": 10}),
        ),
    )
    async def shadow(
        self,
        model: FromPath[str],
        data: JSONBody[Shadow],
        plan_changes: NamedDependency[PlanChanges],
        operator: NamedDependency[Operator],
        dry_run: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
    ) -> Response[PlanResult]:
        """Send copies of items to a shadow revision, and compare its results."""
        return await _answer(
            plan_changes,
            model,
            mirror_to(data),
            "models.shadow",
            actor=operator.name,
            dry_run=dry_run,
        )

    @delete(
        "/shadow",
        status_code=200,
        opt={"role": Role.OPERATOR},
        operation=_operation("end_shadow", "Remove the shadow of a model"),
    )
    async def end_shadow(
        self,
        model: FromPath[str],
        plan_changes: NamedDependency[PlanChanges],
        operator: NamedDependency[Operator],
        dry_run: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
    ) -> Response[PlanResult]:
        """Remove the shadow of a model."""
        return await _answer(
            plan_changes,
            model,
            without_shadow,
            "models.shadow",
            actor=operator.name,
            dry_run=dry_run,
        )

    @post(
        "/rollback",
        status_code=200,
        opt={"role": Role.OPERATOR},
        operation=_operation("roll_back_model", "Undo the last change of a model's split"),
    )
    async def rollback(
        self,
        model: FromPath[str],
        plan_changes: NamedDependency[PlanChanges],
        operator: NamedDependency[Operator],
        dry_run: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
    ) -> Response[PlanResult]:
        """Undo the last change of a model's split. Calling it twice does not undo two changes.

        A shadow that was added after the last change of the split is removed.
        """
        return await _answer(
            plan_changes,
            model,
            as_before(model),
            ROLLBACK,
            actor=operator.name,
            dry_run=dry_run,
        )


async def _answer(
    plan_changes: PlanChanges,
    model: str,
    derive: Derive,
    action: str,
    *,
    actor: str,
    dry_run: bool,
) -> Response[PlanResult]:
    result = await plan_changes.change(model, derive, action=action, actor=actor, dry_run=dry_run)
    return Response(result, status_code=200 if result.live or dry_run else 202)
