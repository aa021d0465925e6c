"""Plans requests: the model, whether it answers the task, cache keys, the work for missed items."""

from functools import partial
from typing import Literal

import msgspec

from sluicegate.gateway.cache.entry import CachedResult, Validity
from sluicegate.gateway.cache.key import CacheKey, KeyMaker, KeyParts, Prefix, epoch_of
from sluicegate.gateway.config.document import ModelConfig
from sluicegate.gateway.dispatch.work import ItemOwner, Work
from sluicegate.gateway.errors import TaskNotSupported, UpstreamUnavailable
from sluicegate.gateway.inference.interfaces import ModelTable
from sluicegate.gateway.inference.outcomes import hit_outcome, refused_as_truncated
from sluicegate.gateway.inference.visibility import model_not_found, visible_models
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.types import (
    CacheDirectives,
    Criticality,
    InferenceRequest,
    ItemOutcome,
    Principal,
    ServedModel,
)
from sluicegate.wire.protocol import TOKEN_TASKS, Task

_DEFAULT_ENTRY = ModelConfig()
# Few models and parameters make up most requests; what is long is rarely seen again.
_LONGEST_REMEMBERED = 1024
_MOST_REMEMBERED = 1024
_OK = 200
_PLAIN = CacheDirectives()


class RequestPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions about a model, a tenant and parameters, valid for one runtime."""

    runtime: Runtime
    model: ServedModel
    scope: str
    prefix: Prefix
    entry: ModelConfig
    unrevised: Prefix | None = None
    """Makes keys without a revision, under which stale results are kept. `None`: none are kept."""
    owner: str = ""
    """The scope of the calling tenant, if the answers are kept for all tenants."""

    def is_valid(self, entry: CachedResult, now: float, max_age: float | None = None) -> bool:
        """Return whether a caller who accepts `max_age` seconds may get a stored answer.

        The configuration may have shortened lifetimes after the answer was stored. An operator may
        have purged the tenant whose request computed the answer.
        """
        if entry.status == _OK:
            lifetime = self.entry.cache_ttl
        else:
            lifetime = self.runtime.document.cache.refusal_ttl
        if max_age is not None and max_age < lifetime:
            lifetime = max_age
        if now - entry.stored_at > lifetime:
            return False
        return not entry.owner or self.is_kept(entry)

    def validity(self, directives: CacheDirectives) -> Validity:
        """Return `is_valid` for a caller with `directives`.

        If the function refuses an entry in memory, the look-up goes on to Redis.
        """
        if directives.max_age is None:
            return self.is_valid
        return partial(self.is_valid, max_age=directives.max_age)

    def is_kept(self, entry: CachedResult) -> bool:
        """Return whether no purge of the computing tenant has happened since."""
        owner = entry.owner
        return not owner or entry.owner_epoch == self.runtime.epochs.get(owner, 0)


class PreparedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a request with its plan and cache keys, without caller and deadline."""

    request: InferenceRequest
    plan: RequestPlan
    keys: list[CacheKey]

    def may_read(self, directives: CacheDirectives) -> bool:
        """Return whether the caller may get stored answers."""
        return not directives.no_cache and self.plan.entry.cache_ttl > 0

    def is_shared(self, directives: CacheDirectives) -> bool:
        """Return whether other workers may learn of the computed answers."""
        return self.request.truncate and directives == _PLAIN and self.plan.entry.cache_ttl > 0

    def outcome(self, entry: CachedResult, tier: str, now: float) -> ItemOutcome:
        """Return a stored answer as an outcome: a refusal where the text must not be truncated."""
        outcome = hit_outcome(entry, tier, now)
        if self.request.truncate or not outcome.truncated_from:
            return outcome
        return refused_as_truncated(outcome, self.plan.model.info)

    def work(
        self,
        owner: ItemOwner,
        *,
        deadline: float,
        is_shared: bool,
        is_stored: bool = True,
        principal: Principal | None = None,
        criticality: Criticality = Criticality.DEFAULT,
        lane: Literal["interactive", "bulk"] = "interactive",
        atomic: bool = False,
        traceparent: str = "",
    ) -> "PlannedWork":
        """Return what open items of the request share.

        Other workers learn of the items if `is_shared`, and the answers are stored if `is_stored`.
        """
        plan, request = self.plan, self.request
        return PlannedWork(
            plan=plan,
            is_stored=is_stored,
            model=plan.model,
            task=request.task,
            parameters=request.parameters,
            owner=owner,
            deadline=deadline,
            scope=plan.scope,
            principal=principal,
            criticality=criticality,
            lane=lane,
            truncate=request.truncate,
            is_valid=plan.is_valid,
            is_shared=is_shared,
            atomic=atomic,
            traceparent=traceparent,
        )


class PlannedWork(Work, eq=False, kw_only=True):
    """What open items of a request share, with the request's plan."""

    plan: RequestPlan
    is_stored: bool = True
    """Whether the answers are stored."""


class RequestPlans:
    """Holds the plans of requests that are alike, and prepares requests by them."""

    def __init__(self, *, models: ModelTable, keys: KeyMaker) -> None:
        self._models = models
        self._keys = keys
        self._model = models.model
        self._plans: dict[tuple[str, Task, str, bytes], RequestPlan] = {}

    def prepare(
        self, request: InferenceRequest, principal: Principal, runtime: Runtime
    ) -> PreparedRequest:
        """Return the request with everything decided about it.

        Raises:
            ModelNotFound: no backend serves the model, or the document switched it off.
            UpstreamUnavailable: no backend has been reached since the start.
            TaskNotSupported: the model answers other tasks.
        """
        name = (request.model, request.task, principal.tenant, request.parameters)
        plan = self._plans.get(name)
        # As `is_current` tells, without a call for each request.
        if (
            plan is None
            or plan.runtime is not runtime
            or plan.model is not self._model(request.model)
        ):
            plan = self._plan(request, principal, runtime)
            if len(request.parameters) <= _LONGEST_REMEMBERED:
                if len(self._plans) >= _MOST_REMEMBERED:
                    self._plans.clear()
                self._plans[name] = plan
        keys = plan.prefix.keys(request.items)
        return PreparedRequest(request=request, plan=plan, keys=keys)

    def is_current(self, plan: RequestPlan, runtime: Runtime) -> bool:
        """Tell whether `prepare` would plan in the same way under `runtime`."""
        return plan.runtime is runtime and plan.model is self._models.model(plan.model.info.name)

    def _plan(
        self, request: InferenceRequest, principal: Principal, runtime: Runtime
    ) -> RequestPlan:
        entry = runtime.document.models.get(request.model, _DEFAULT_ENTRY)
        model = self._models.model(request.model) if entry.enabled else None
        if model is None:
            if not self._models.knows_models():
                raise UpstreamUnavailable(
                    "No backend has been reached yet; try again shortly.", retry_after=1.0
                )
            visible = visible_models(self._models.models(), runtime.document, principal)
            raise model_not_found(request.model, visible)
        info = model.info
        shows_tokens = info.shows_tokens and request.task in TOKEN_TASKS
        if not shows_tokens and request.task not in info.tasks:
            tasks = ", ".join(f"`{task}`" for task in info.tasks)
            raise TaskNotSupported(f"`{request.model}` answers {tasks}, not `{request.task}`.")
        scope = "shared" if entry.scope == "shared" else f"tenant:{principal.tenant}"
        parts = KeyParts(
            scope=scope,
            epoch=epoch_of(request.model, scope, runtime.epochs, runtime.purge_history),
            model=request.model,
            variant=info.variant,
            task=request.task,
            parameters=request.parameters,
        )
        return RequestPlan(
            runtime=runtime,
            model=model,
            scope=scope,
            prefix=self._keys.prefix(parts),
            entry=entry,
            unrevised=(
                self._keys.prefix(parts.unrevised()) if _keeps_last(entry, request.task) else None
            ),
            owner=f"tenant:{principal.tenant}" if scope == "shared" else "",
        )


def _keeps_last(entry: ModelConfig, task: Task) -> bool:
    """Tell whether the last answers of a model are kept beyond their time.

    A verdict of a guard is not: where it cannot be computed, the guard's `on_error` decides.
    """
    if task is Task.GUARD:
        return False
    return entry.cache_ttl > 0 and max(entry.stale_while_revalidate, entry.stale_if_error) > 0
