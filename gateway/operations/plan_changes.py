"""Changes the plan of a model, which selects the revisions that are served.

Every backend checks a plan before any backend applies it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import msgspec

from sluicegate.gateway.errors import NotFound, PlanRefused, UpstreamUnavailable
from sluicegate.gateway.ledger.types import StoredPlan
from sluicegate.gateway.operations.backend_calls import BackendStates
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.fleet_view import reported_backends
from sluicegate.gateway.operations.model_names import explain_unknown_model
from sluicegate.gateway.operations.models import (
    BackendModels,
    changes,
    explain_problems,
)
from sluicegate.gateway.runtime.control_values import RELOAD_TIMEOUT, Topic
from sluicegate.gateway.types import Endpoint
from sluicegate.wire.plans import PlanTrial, Serving
from sluicegate.wire.protocol import ModelInfo, PlanVerdict, ServingState

ROLLBACK = "models.rollback"
Derive = Callable[[Serving, StoredPlan], Serving | None]
"""Derives a new plan from how the model is served now and from the stored plan."""


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a change to a model's plan.

    `plan` is `null` if the model's folder decides how the model is served. `live` is true if all
    workers and all reachable backends apply the plan. `away` maps each unreachable backend to the
    reason why it is unreachable. An unreachable backend has not checked the plan. It gets the plan
    when it can be reached again. After a dry run, `workers` and `backends` are empty.
    """

    model: str
    plan: Serving | None
    changed: bool
    live: bool
    workers: dict[str, str] = {}
    backends: dict[str, BackendModels] = {}
    away: dict[str, str] = {}


async def change_plan(
    context: OperationContext, model: str, derive: Derive, *, action: str, dry_run: bool
) -> PlanResult:
    """Let every backend check a new plan, store the plan, and wait until it is applied.

    `derive` makes the new plan from the present one. If one of these errors is raised, nothing
    has changed. If two operators change the same plan, one of the changes fails.

    Raises:
        NotFound: no backend has the model.
        UpstreamUnavailable: no backend can be reached.
        PlanRefused: a backend cannot serve the plan, or backends would serve it differently.
        Conflict: somebody else has changed the plan in the meantime.
    """
    found = await context.backends.states()
    serving = served_by(found, model)
    stored = await asyncio.to_thread(context.ledger.plans.plan, model)
    plan = derive(stored.plan or current_serving(model, serving.values()), stored)
    await _check(context, model, plan, serving)
    result = PlanResult(
        model=model,
        plan=plan,
        changed=plan != stored.plan,
        live=False,
        away=dict(found.away),
    )
    if dry_run:
        return result
    if result.changed:
        wanted = msgspec.structs.replace(
            stored, plan=plan, previous=_previous(stored, plan, action)
        )
        await asyncio.to_thread(
            context.ledger.plans.change,
            model,
            wanted,
            actor=context.operator.name,
            action=action,
            detail={"from": _shown(stored.plan), "to": _shown(plan)},
        )
    return await _follow(context, result)


async def _check(
    context: OperationContext,
    model: str,
    plan: Serving | None,
    serving: Mapping[Endpoint, ServingState],
) -> None:
    trial = PlanTrial(model=model, plan=plan)
    found = await asyncio.gather(*(context.backends.check(each, trial) for each in serving))
    verdicts = dict(zip(serving, found, strict=True))
    problems = {
        str(endpoint.backend): _new_problems(model, verdict, serving[endpoint])
        for endpoint, verdict in verdicts.items()
    }
    if any(problems.values()):
        raise PlanRefused(explain_problems(problems))
    check_equal({each.backend: verdict.models for each, verdict in verdicts.items()}, model)


async def _follow(context: OperationContext, result: PlanResult) -> PlanResult:
    before = await reported_backends(context.control)
    version = await context.control.touch(Topic.MODELS)
    workers = await context.control.wait_for_workers(Topic.MODELS, version, within=RELOAD_TIMEOUT)
    backends = changes(before, await reported_backends(context.control))
    broken = any(base_name(n) == result.model for b in backends.values() for n in b.problems)
    return msgspec.structs.replace(
        result,
        workers=workers,
        backends=backends,
        live=not broken and all(outcome == "ok" for outcome in workers.values()),
    )


def served_by(found: BackendStates, model: str) -> dict[Endpoint, ServingState]:
    """Return the backends that have a model.

    Raises:
        NotFound: no backend has the model.
        UpstreamUnavailable: no backend can be reached.
    """
    serving = found.serving(model)
    if serving and "@" not in model:
        return serving
    if not found.states:
        raise UpstreamUnavailable("no backend can be reached; try again", retry_after=1.0)
    names = {info.name for state in found.states.values() for info in state.models}
    raise NotFound(explain_unknown_model(model, {name for name in names if "@" not in name}))


def current_serving(model: str, states: Iterable[ServingState]) -> Serving:
    """Return how a model is served now, according to the first backend that serves it."""
    for state in states:
        for info in state.models:
            if info.name == model and info.serving is not None:
                return info.serving
    return Serving()


def check_equal(verdicts: Mapping[str, list[ModelInfo]], model: str) -> None:
    """Check that a plan has the same effect on all backends, and that its revisions are compatible.

    A revision must have the same files on all backends. All revisions of the plan must have the
    same labels, dimensions and tasks.

    Raises:
        PlanRefused: something differs. The message names the revisions and backends.
    """
    places: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for backend, infos in verdicts.items():
        for info in infos:
            places[info.name][info.revision].append(f"`{backend}`")
    for name, revisions in sorted(places.items(), reverse=True):
        if len(revisions) > 1:
            where = "; ".join(f"`{r}` on {', '.join(on)}" for r, on in revisions.items())
            raise PlanRefused(
                f"backends have different files of `{name}` ({where}); make the repositories equal"
            )
    by_name = {info.name: info for infos in verdicts.values() for info in infos}
    plan = by_name[model].serving if model in by_name else None
    weights = (plan.revisions if plan is not None else None) or {}
    revisions_of_plan = [by_name.get(f"{model}@{number}") for number in weights]
    kinds = [_kind(info) for info in revisions_of_plan if info is not None]
    for other in kinds[1:]:
        for name, one in kinds[0].items():
            if one != other[name]:
                raise PlanRefused(
                    f"revisions in a traffic split must have the same labels, dimensions and tasks,"
                    f" but {name} of `{model}` differ: {one} and {other[name]}"
                )


def _kind(info: ModelInfo) -> dict[str, object]:
    return {
        "labels": sorted(info.labels) if info.labels is not None else None,
        "dimensions": info.dimensions,
        "tasks": sorted(info.tasks),
    }


def _new_problems(model: str, verdict: PlanVerdict, state: ServingState) -> dict[str, str]:
    """Return all problems of the plan's model, and those problems of other models that are new."""
    return {
        name: reason
        for name, reason in verdict.problems.items()
        if base_name(name) == model or name not in state.problems
    }


def _previous(stored: StoredPlan, plan: Serving | None, action: str) -> Serving | None:
    """Return the plan that a rollback restores: the plan before the last change of the split."""
    if action == ROLLBACK:
        return plan
    before = None if stored.plan is None else stored.plan.revisions
    after = None if plan is None else plan.revisions
    return stored.previous if stored.version and before == after else stored.plan


def base_name(name: str) -> str:
    """Return a model's name without its revision, which may follow as in `sentiment@2`."""
    return name.partition("@")[0]


def _shown(plan: Serving | None) -> object:
    return msgspec.to_builtins(plan)
