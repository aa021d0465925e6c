"""Plans requests: the model, whether it answers the task, and the cache keys of the items."""

import msgspec

from gateway.cache.key import KeyMaker, Prefix
from gateway.config.document import ModelConfig
from gateway.errors import TaskNotSupported, UpstreamUnavailable
from gateway.inference.interfaces import ModelTable
from gateway.inference.last_answers import keeps_last
from gateway.inference.prepared_request import PreparedRequest, RequestPlan
from gateway.inference.visibility import model_not_found, visible_models
from gateway.runtime.runtime import Runtime
from gateway.types import InferenceRequest, Principal
from wire.protocol import TOKEN_TASKS, ModelInfo, Task

_DEFAULT_ENTRY = ModelConfig()
# Few models and parameters make up most requests; what is long is rarely seen again.
_LONGEST_REMEMBERED = 1024
_MOST_REMEMBERED = 1024


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
        return RequestPlan(
            runtime=runtime,
            model=model,
            scope=scope,
            prefix=self._prefix(request, runtime, scope, info),
            entry=entry,
            unrevised=(
                self._prefix(request, runtime, scope, msgspec.structs.replace(info, revision=""))
                if keeps_last(entry)
                else None
            ),
            owner=f"tenant:{principal.tenant}" if scope == "shared" else "",
        )

    def _prefix(
        self, request: InferenceRequest, runtime: Runtime, scope: str, info: ModelInfo
    ) -> Prefix:
        """Return what keys of answers by the model begin with."""
        epochs, name = runtime.epochs, request.model
        return self._keys.prefix(
            scope=scope,
            epoch=f"{epochs.get(f'model:{name}', 0)}.{epochs.get(scope, 0)}{runtime.purge_history}",
            model=name,
            info=info,
            task=request.task,
            parameters=request.parameters,
        )
