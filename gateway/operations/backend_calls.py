"""Calls all backends of the active configuration document, for operators' routes."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from sluicegate.gateway.dispatch.discovery import at
from sluicegate.gateway.errors import UpstreamUnavailable
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.operations.fleet_view import reported_backends
from sluicegate.gateway.runtime.runtime import compile_runtime
from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream.base import BackendClient, CallFailed, Cause
from sluicegate.wire.plans import PlanTrial
from sluicegate.wire.protocol import (
    TOKEN_TASKS,
    Call,
    CallItem,
    Done,
    Failed,
    ModelInfo,
    PlanVerdict,
    Report,
    ServingState,
    Task,
)

if TYPE_CHECKING:  # see `gateway.operations.context`
    from sluicegate.gateway.runtime.control import Control

_STATE_TIMEOUT = 5.0
# A check takes as long as a reload, because both load models.
_CHECK_TIMEOUT = 120.0
_RUN_TIMEOUT = 60.0
# Operators' trials share no row-cache entries with tenants.
_SCOPE = "operators"


class BackendStates(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the state of each backend that responded, and the error of each call that failed."""

    states: Mapping[Endpoint, ServingState]
    away: Mapping[str, str]

    def serving(self, model: str) -> dict[Endpoint, ServingState]:
        """Return the backends whose model repository has `model`."""
        return {
            endpoint: state
            for endpoint, state in self.states.items()
            if model in state.problems or any(info.name == model for info in state.models)
        }


class BackendCalls:
    """Finds the backends that the workers use, and calls them."""

    def __init__(
        self, *, control: "Control", active: ActiveDocumentReader, client: BackendClient
    ) -> None:
        self._control = control
        self._active = active
        self._client = client

    async def states(self) -> BackendStates:
        """Return the state of every backend.

        Raises:
            ConfigurationError: there is no valid document.
            DependencyUnavailable: the workers' reports cannot be read. They are needed because they
                hold the addresses to which DNS names resolve.
        """
        endpoints = await self._endpoints()
        found = await asyncio.gather(*map(self._state, endpoints))
        pairs = list(zip(endpoints, found, strict=True))
        return BackendStates(
            states={each: state for each, state in pairs if isinstance(state, ServingState)},
            away={each.backend: reason for each, reason in pairs if isinstance(reason, str)},
        )

    async def labels(self, models: Iterable[str]) -> dict[str, list[str]]:
        """Return the labels of each model in `models` that a backend serves.

        A model that is not a classifier has no labels.

        Raises:
            ConfigurationError, DependencyUnavailable: as for `states`.
        """
        states = (await self.states()).states.values()
        served = [info for state in states for info in state.models]
        found: dict[str, list[str]] = {}
        for name in models:
            infos = [info for info in served if info.name == name]
            if infos:
                each = [info.labels or [] for info in infos if Task.CLASSIFY in info.tasks]
                found[name] = list(dict.fromkeys(chain.from_iterable(each)))
        return found

    async def tasks(self, model: str) -> list[Task]:
        """Return the tasks of a model, or an empty list if no backend serves the model.

        Raises:
            ConfigurationError, DependencyUnavailable: as for `states`.
        """
        reported = await reported_backends(self._control)
        serving = {each for each, view in reported.items() if model in view.models}
        for endpoint in await self._endpoints():
            if endpoint.backend in serving:
                state = await self._state(endpoint)
                if isinstance(state, ServingState):
                    found = (info for info in state.models if info.name == model)
                    return next((_tasks(info) for info in found), [])
        return []

    async def run(
        self,
        states: BackendStates,
        model: str,
        task: Task,
        parameters: bytes,
        items: Sequence[bytes],
    ) -> list[Done | Failed]:
        """Have a backend that serves `model` in `states` answer items, within 60 s.

        Nothing is billed. The result has an outcome for each item, in their order.

        Raises:
            UpstreamUnavailable: no backend serves the model, or the call failed.
        """
        for endpoint, state in states.serving(model).items():
            info = next((info for info in state.models if info.name == model), None)
            if info is not None and state.ready:
                call = Call(
                    model=model,
                    revision=info.revision,
                    profile=info.profile,
                    task=task,
                    parameters=parameters,
                    items=[CallItem(body=e, remaining=_RUN_TIMEOUT, scope=_SCOPE) for e in items],
                    lane="bulk",
                    truncate=False,
                )
                return await self._run(endpoint, call)
        raise UpstreamUnavailable(f"No backend serves the model `{model}`.")

    async def _run(self, endpoint: Endpoint, call: Call) -> list[Done | Failed]:
        loop = asyncio.get_running_loop()
        outcomes: list[Done | Failed] = []
        ended: asyncio.Future[Report | BaseException] = loop.create_future()
        try:
            started = self._client.start_call(
                endpoint,
                call,
                deadline=loop.time() + _RUN_TIMEOUT,
                idle_timeout=_RUN_TIMEOUT,
                receive=outcomes.extend,
                on_end=lambda end: None if ended.done() else ended.set_result(end),
            )
            try:
                end = await ended
            except asyncio.CancelledError:
                started.cancel()
                raise
            if isinstance(end, BaseException):
                raise end
        except CallFailed as error:
            did = "refused the call" if error.cause is Cause.REFUSED else "did not answer"
            raise UpstreamUnavailable(
                f"The backend `{endpoint.backend}` {did}: {error.detail}"
            ) from error
        if len(outcomes) != len(call.items):
            raise UpstreamUnavailable(
                f"The backend `{endpoint.backend}` answered {len(outcomes)} of {len(call.items)}"
                " items. Try again."
            )
        return sorted(outcomes, key=lambda each: each.index)

    async def check(self, endpoint: Endpoint, trial: PlanTrial) -> PlanVerdict:
        """Let a backend try to load the revisions of a plan.

        If the call fails, its error is a problem in the result.
        """
        try:
            return await self._client.check(endpoint, trial, time_limit=_CHECK_TIMEOUT)
        except CallFailed as error:
            return PlanVerdict(problems={trial.model: error.detail})

    async def _endpoints(self) -> list[Endpoint]:
        """Return the document's backends. DNS names are resolved with the workers' reports."""
        document = await self._active.document()
        found: list[Endpoint] = []
        for endpoint in compile_runtime(document, 0).endpoints:
            if not endpoint.dns:
                found.append(endpoint)
                continue
            reported = await reported_backends(self._control)
            ids = (name.partition("@") for name in reported)
            found += [at(endpoint, place) for entry, _, place in ids if entry == endpoint.backend]
        return found

    async def _state(self, endpoint: Endpoint) -> ServingState | str:
        try:
            return await self._client.state(endpoint, time_limit=_STATE_TIMEOUT)
        except CallFailed as error:
            return error.detail


def _tasks(info: ModelInfo) -> list[Task]:
    return [*info.tasks, *(TOKEN_TASKS if info.shows_tokens else ())]
