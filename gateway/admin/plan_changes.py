"""Changes how revisions of a model are served: checked by every backend first, then by all."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import msgspec

from backends.plans import PlanTrial, Serving
from backends.protocol import ModelInfo, PlanVerdict, ServingState
from gateway.admin.backend_calls import BackendCalls, BackendStates
from gateway.admin.fleet_view import reported_backends
from gateway.admin.model_names import explain_unknown_model
from gateway.admin.models import RELOAD_TIMEOUT, BackendModels, changes, explain_problems
from gateway.errors import NotFound, PlanRefused, UpstreamUnavailable
from gateway.ledger.ledger import Ledger
from gateway.ledger.types import StoredPlan
from gateway.runtime.control import Control, Topic
from gateway.types import Endpoint

ROLLBACK = "models.rollback"
Derive = Callable[[Serving, StoredPlan], Serving | None]
"""Makes a plan of how the model is served now, and of what operators said before."""


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a change; `live` when every worker and every backend that answers follows it.

    `plan` is `null` where the folder of the model says how it is served. Backends that are `away`
    were not asked; they get the plan when they return. `workers` and `backends` are empty for a dry
    run.
    """

    model: str
    plan: Serving | None
    changed: bool
    live: bool
    workers: dict[str, str] = {}
    backends: dict[str, BackendModels] = {}
    away: dict[str, str] = {}


class PlanChanges:
    """Makes changes of plans, one at a time for each model."""

    def __init__(self, *, backends: BackendCalls, control: Control, ledger: Ledger) -> None:
        self._backends = backends
        self._control = control
        self._ledger = ledger

    async def change(
        self, model: str, derive: Derive, *, action: str, actor: str, dry_run: bool
    ) -> PlanResult:
        """Have every backend check a plan, then store it and have all follow it.

        Raises:
            NotFound: no backend has the model.
            UpstreamUnavailable: no backend can be reached.
            PlanRefused: a backend could not serve it, or two would serve it differently; nothing
                has changed.
            Conflict: somebody else changed the model meanwhile; nothing has changed.
        """
        found = await self._backends.states()
        serving = served_by(found, model)
        stored = await asyncio.to_thread(self._ledger.plans.plan, model)
        plan = derive(stored.plan or current_serving(model, serving.values()), stored)
        await self._check(model, plan, serving)
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
                self._ledger.plans.change,
                model,
                wanted,
                actor=actor,
                action=action,
                detail={"from": _shown(stored.plan), "to": _shown(plan)},
            )
        return await self._follow(result)

    async def _check(
        self, model: str, plan: Serving | None, serving: Mapping[Endpoint, ServingState]
    ) -> None:
        trial = PlanTrial(model=model, plan=plan)
        found = await asyncio.gather(*(self._backends.check(each, trial) for each in serving))
        verdicts = dict(zip(serving, found, strict=True))
        problems = {
            str(endpoint.backend): _new_problems(model, verdict, serving[endpoint])
            for endpoint, verdict in verdicts.items()
        }
        if any(problems.values()):
            raise PlanRefused(explain_problems(problems))
        check_equal({each.backend: verdict.models for each, verdict in verdicts.items()}, model)

    async def _follow(self, result: PlanResult) -> PlanResult:
        before = await reported_backends(self._control)
        version = await self._control.touch(Topic.MODELS)
        workers = await self._control.wait_for_workers(Topic.MODELS, version, within=RELOAD_TIMEOUT)
        backends = changes(before, await reported_backends(self._control))
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
        NotFound: none has it.
        UpstreamUnavailable: none can be reached.
    """
    serving = found.serving(model)
    if serving and "@" not in model:
        return serving
    if not found.states:
        raise UpstreamUnavailable("no backend can be reached; try again", retry_after=1.0)
    names = {info.name for state in found.states.values() for info in state.models}
    raise NotFound(explain_unknown_model(model, {name for name in names if "@" not in name}))


def current_serving(model: str, states: Iterable[ServingState]) -> Serving:
    """Return how a model is served now, by the first backend that serves it."""
    for state in states:
        for info in state.models:
            if info.name == model and info.serving is not None:
                return info.serving
    return Serving()


def check_equal(verdicts: Mapping[str, list[ModelInfo]], model: str) -> None:
    """Check that all backends would serve equal files, and all revisions equal kinds of answers.

    Raises:
        PlanRefused: the message names the revisions and backends that differ.
    """
    places: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for backend, infos in verdicts.items():
        for info in infos:
            places[info.name][info.revision].append(f"`{backend}`")
    for name, revisions in sorted(places.items(), reverse=True):
        if len(revisions) > 1:
            where = "; ".join(f"`{r}` on {', '.join(on)}" for r, on in revisions.items())
            raise PlanRefused(
                f"`{name}` has other files on other backends ({where}); make the repositories equal"
            )
    by_name = {info.name: info for infos in verdicts.values() for info in infos}
    plan = by_name[model].serving if model in by_name else None
    shares = (plan.revisions if plan is not None else None) or {}
    arms = [by_name.get(f"{model}@{number}") for number in shares]
    kinds = [_kind(arm) for arm in arms if arm is not None]
    for other in kinds[1:]:
        for name, one in kinds[0].items():
            if one != other[name]:
                raise PlanRefused(
                    f"revisions that share items have the same labels, dimensions and tasks; those "
                    f"of `{model}` have other {name}: {one} and {other[name]}"
                )


def _kind(info: ModelInfo) -> dict[str, object]:
    return {
        "labels": sorted(info.labels) if info.labels is not None else None,
        "dimensions": info.dimensions,
        "tasks": sorted(info.tasks),
    }


def _new_problems(model: str, verdict: PlanVerdict, state: ServingState) -> dict[str, str]:
    """Return problems of the model, and those of others that are not there already."""
    return {
        name: reason
        for name, reason in verdict.problems.items()
        if base_name(name) == model or name not in state.problems
    }


def _previous(stored: StoredPlan, plan: Serving | None, action: str) -> Serving | None:
    """Return what a rollback goes back to: the plan before the revisions changed."""
    if action == ROLLBACK:
        return plan
    before = None if stored.plan is None else stored.plan.revisions
    after = None if plan is None else plan.revisions
    return stored.previous if stored.version and before == after else stored.plan


def base_name(name: str) -> str:
    """Return the name of the model that `name` is, or is a revision of."""
    return name.partition("@")[0]


def _shown(plan: Serving | None) -> object:
    return msgspec.to_builtins(plan)
