"""Reloads the backends' model repositories."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from sluicegate.gateway.api.openapi_parts import PROBLEM_JSON, Content
from sluicegate.gateway.errors import GatewayError, ModelsBroken
from sluicegate.gateway.http.problem_details import Problem, problem
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import DONE, PENDING, Answer, Family
from sluicegate.gateway.operations.fleet_view import BackendView, reported_backends
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.runtime.control_values import RELOAD_TIMEOUT, Topic

if TYPE_CHECKING:  # see `gateway.operations.context`
    from sluicegate.gateway.ledger.audit import Audit

FAMILY = Family("operations")
_MAX_NAMED = 5


class ModelChange(msgspec.Struct, frozen=True, kw_only=True):
    """The revision of a model before and after a reload.

    `null` means that the model was not served.
    """

    old: str | None
    new: str | None


class BackendModels(msgspec.Struct, frozen=True, kw_only=True):
    """The models of a backend after a reload.

    `problems` maps each broken model to its error. The error also names the revision that is still
    served.
    """

    region: str
    models: dict[str, ModelChange]
    problems: dict[str, str]


class ReloadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a reload. `live` is true if all backends and workers use the new models."""

    live: bool
    workers: dict[str, str]
    backends: dict[str, BackendModels]


class BrokenModelsProblem(Problem, frozen=True, kw_only=True, omit_defaults=True):
    """The problem document of a reload that found broken models. It has the state of all models."""

    live: bool
    workers: dict[str, str]
    backends: dict[str, BackendModels]


@FAMILY.operation(
    "POST /admin/models/reload",
    "Reload the backends' model repositories",
    role=Role.OPERATOR,
    errors=(ModelsBroken,),
    answers={
        200: (Content(type=ReloadResult, summary=DONE),),
        202: (Content(type=ReloadResult, summary=PENDING),),
        422: (Content(type=BrokenModelsProblem, media=PROBLEM_JSON, summary="A model is broken"),),
    },
)
async def reload_models(context: OperationContext) -> Answer[ReloadResult | dict[str, Any]]:
    """Reload the backends' model repositories.

    - 200: every worker knows the new revisions, and no request uses a replaced revision any
      more.
    - 202: some workers do not know the new revisions yet.
    - 422: a model is broken. Its former revision is still served. All other models are
      reloaded.
    """
    control = context.control
    before = await reported_backends(control)
    await context.audit("models.reload", "")
    version = await control.touch(Topic.MODELS)
    workers = await control.wait_for_workers(Topic.MODELS, version, within=RELOAD_TIMEOUT)
    backends = changes(before, await reported_backends(control))
    broken = any(backend.problems for backend in backends.values())
    # The audit log already has an entry for the reload. Only the entries for its outcome may be
    # missing.
    with contextlib.suppress(GatewayError):
        await asyncio.to_thread(
            _audit_outcome, context.ledger.audit, context.operator.name, backends
        )
    live = not broken and all(outcome == "ok" for outcome in workers.values())
    reloaded = ReloadResult(live=live, workers=workers, backends=backends)
    if not broken:
        return Answer(result=reloaded)
    problems = {name: backend.problems for name, backend in backends.items()}
    error = ModelsBroken(explain_problems(problems))
    told = msgspec.to_builtins(problem(error, context.request_id))
    return Answer(
        result=told | msgspec.to_builtins(reloaded), status=error.status, media=PROBLEM_JSON
    )


def changes(
    before: Mapping[str, BackendView], after: Mapping[str, BackendView]
) -> dict[str, BackendModels]:
    """Return the revision of each model on each backend, before and after the reload."""
    found = {}
    for name, view in sorted(after.items()):
        old = before[name].models if name in before else {}
        found[name] = BackendModels(
            region=view.region,
            models={
                model: ModelChange(old=old.get(model), new=view.models.get(model))
                for model in sorted({*old, *view.models})
            },
            problems=view.problems,
        )
    return found


def _audit_outcome(audit: "Audit", actor: str, backends: Mapping[str, BackendModels]) -> None:
    """Write an audit entry for each changed revision and each broken model.

    Raises:
        DependencyUnavailable: the ledger cannot be reached; entries may be missing.
    """
    changed = Counter(
        (model, change)
        for backend in backends.values()
        for model, change in backend.models.items()
        if change.old != change.new
    )
    broken = Counter(one for backend in backends.values() for one in backend.problems.items())
    for (model, change), count in changed.items():
        detail: dict[str, object] = {"old": change.old, "new": change.new, "backends": count}
        audit(actor, "models.reload.done", model, detail)
    for (model, reason), count in broken.items():
        detail = {"problem": reason, "backends": count}
        audit(actor, "models.reload.failed", model, detail)


def explain_problems(problems: Mapping[str, Mapping[str, str]]) -> str:
    """Return one line that lists each problem with its model and the backends that have it."""
    where: dict[tuple[str, str], list[str]] = {}
    for backend, models in problems.items():
        for model, reason in models.items():
            where.setdefault((model, reason), []).append(backend)
    lines = [
        f"`{model}` on {', '.join(f'`{backend}`' for backend in places)}: {reason}"
        for (model, reason), places in where.items()
    ]
    rest = f"; and {len(lines) - _MAX_NAMED} more" if len(lines) > _MAX_NAMED else ""
    return "; ".join(lines[:_MAX_NAMED]) + rest
