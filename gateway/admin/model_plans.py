"""Serves the operators' routes of revisions: their shares, shadows, rollbacks and what each did."""

from typing import Annotated

import msgspec
from litestar import Controller, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from backends.plans import Revision, Shadow, Weight
from gateway.admin.arms import ArmReader, ModelArms
from gateway.admin.openapi import DONE, PENDING
from gateway.admin.operators import Operator, Role
from gateway.admin.plan_changes import ROLLBACK, Derive, PlanChanges, PlanResult
from gateway.admin.plan_steps import (
    as_before,
    mirror_to,
    split_by,
    without_shadow,
)
from gateway.api.openapi_parts import Content, Json as Schema, Operation
from gateway.errors import (
    ConfigurationError,
    Conflict,
    DependencyUnavailable,
    NotFound,
    PlanRefused,
    UpstreamUnavailable,
)

_ABOUT: dict[str, Schema] = {
    "model": {"description": "The name of a model.", "example": "sentiment"},
    "dry_run": {"description": "Check the change on every backend, and change nothing."},
}


class SplitChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The revisions of a model that answer, by number, with the weights of their shares."""

    revisions: Annotated[dict[Revision, Weight], msgspec.Meta(min_length=1)]


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
    """Changes how revisions of a model are served, on all backends."""

    path = "/admin/models/{model:str}"

    @get(
        "/arms",
        opt={"role": Role.VIEWER},
        operation=Operation(
            id="get_model_arms",
            summary="What each revision of a model did",
            tag="operations",
            errors=(NotFound, ConfigurationError, UpstreamUnavailable, DependencyUnavailable),
            answers={200: (Content(type=ModelArms),)},
            about={"model": _ABOUT["model"]},
        ),
    )
    async def arms(self, model: FromPath[str], arm_reader: NamedDependency[ArmReader]) -> ModelArms:
        """Return how the revisions of a model share its items, and what each did."""
        return await arm_reader.read(model)

    @put(
        "/split",
        opt={"role": Role.OPERATOR},
        operation=_operation(
            "split_model",
            "Share the items of a model between revisions",
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
        """Share items by weight, once every backend has checked the revisions.

        A shadow that answers from now on is none any more.
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
        operation=_operation("reset_model", "Serve a model as its folder says"),
    )
    async def reset(
        self,
        model: FromPath[str],
        plan_changes: NamedDependency[PlanChanges],
        operator: NamedDependency[Operator],
        dry_run: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
    ) -> Response[PlanResult]:
        """Serve a model as its folder says: by `serving.yaml`, or its newest revision."""
        return await _answer(
            plan_changes,
            model,
            lambda *_: None,
            "models.reset",
            actor=operator.name,
            dry_run=dry_run,
        )

    @put(
        "/shadow",
        opt={"role": Role.OPERATOR},
        operation=_operation(
            "shadow_model",
            "Mirror items of a model to a revision",
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
        """Mirror a share of the items to a revision, and compare the answers."""
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
        operation=_operation("end_shadow", "Mirror items of a model no more"),
    )
    async def end_shadow(
        self,
        model: FromPath[str],
        plan_changes: NamedDependency[PlanChanges],
        operator: NamedDependency[Operator],
        dry_run: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
    ) -> Response[PlanResult]:
        """Mirror items no more."""
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
        operation=_operation("roll_back_model", "Serve a model as before the last change"),
    )
    async def rollback(
        self,
        model: FromPath[str],
        plan_changes: NamedDependency[PlanChanges],
        operator: NamedDependency[Operator],
        dry_run: FromQuery[bool] = False,  # noqa: FBT002 - a query parameter
    ) -> Response[PlanResult]:
        """Serve a model as before the last change of its revisions; a second time changes nothing.

        A shadow that was added since is mirrored to no more.
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
