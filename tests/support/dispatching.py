"""Provides values and a collector for tests of routing and dispatch."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.dispatch.work import OpenItem, Work, WorkRunner
from sluicegate.gateway.types import (
    BackendId,
    Criticality,
    Endpoint,
    ItemFailure,
    ItemOutcome,
    RegionName,
    ServedModel,
)
from sluicegate.gateway.upstream.base import BackendClient, Receive
from sluicegate.wire.protocol import Call, ModelInfo, Report, ServingState, Task
from testing.stub_backend import StubBackend, stub_model


def endpoint(
    backend: str,
    *,
    region: str = "eu",
    url: str = "",
    weight: float = 1.0,
    overflow: bool = False,
) -> Endpoint:
    """Return an endpoint; its URL is made of its id where none is given."""
    return Endpoint(
        backend=BackendId(backend),
        region=RegionName(region),
        url=url or f"http://{backend}.invalid",
        weight=weight,
        overflow=overflow,
    )


def endpoint_of(stub: StubBackend) -> Endpoint:
    """Return the endpoint of a running stub."""
    return endpoint(stub.backend_id, region=stub.region, url=stub.url)


def state(
    backend: str = "stub",
    *,
    models: list[ModelInfo] | None = None,
    ready: bool = True,
    leaving: bool = False,
    report: Report | None = None,
) -> ServingState:
    """Return what a backend would say of itself."""
    return ServingState(
        backend_id=backend,
        region="eu",
        ready=ready and not leaving,
        leaving=leaving,
        missing=[] if ready and not leaving else ["model"],
        provider="StubExecutionProvider",
        models=[stub_model()] if models is None else models,
        report=report or Report(),
    )


def served(name: str = "stub") -> ServedModel:
    """Return the stub's model as the fleet would give it."""
    return ServedModel(info=stub_model(name), regions=(RegionName("eu"),))


Settle = Callable[[Sequence[tuple[int, ItemOutcome]]], None]
"""Takes outcomes that became known together, each with its item's index."""


class GivenItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that is to be computed."""

    index: int
    body: bytes
    key: CacheKey | None = None


class GivenWork(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a request that are to be computed."""

    model: ServedModel
    items: tuple[GivenItem, ...]
    task: Task = Task.CLASSIFY
    parameters: bytes = b"\x80"
    criticality: Criticality = Criticality.DEFAULT
    lane: Literal["interactive", "bulk"] = "interactive"
    truncate: bool = True
    is_shared: bool = False
    atomic: bool = False


def work(count: int, *, model: ServedModel | None = None, atomic: bool = False) -> GivenWork:
    """Return work of so many items; item `n` is the text `text n`."""
    items = tuple(
        GivenItem(index=n, body=msgspec.msgpack.encode(f"text {n}")) for n in range(count)
    )
    return GivenWork(model=model or served(), items=items, atomic=atomic)


class Started:
    """The open items of a request, which tells `settle` of their outcomes."""

    def __init__(
        self, given: GivenWork, *, deadline: float, settle: Settle, traceparent: str = ""
    ) -> None:
        work = Work(
            model=given.model,
            task=given.task,
            parameters=given.parameters,
            owner=self,
            deadline=deadline,
            scope="tenant-a",
            criticality=given.criticality,
            lane=given.lane,
            truncate=given.truncate,
            is_shared=given.is_shared,
            atomic=given.atomic,
            traceparent=traceparent,
        )
        self.items = [
            OpenItem(work, item.index, item.body, item.key or CacheKey(item.body, b""))
            for item in given.items
        ]
        self._left = len(self.items)
        self._settle = settle
        self._runner: WorkRunner | None = None
        self.ended = asyncio.Event()

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """See `ItemOwner`."""
        self._left -= len(items)
        if not self._left:
            self.ended.set()
        self._settle([(item.index, item.outcome) for item in items if item.outcome is not None])

    def start(self, runner: WorkRunner) -> "Started":
        """Have the items computed."""
        self._runner = runner
        runner.start(self.items)
        return self

    def cancel(self) -> None:
        """Settle what is open as cancelled."""
        assert self._runner is not None
        self._runner.cancel(self.items)


class Outcomes:
    """Collects what is settled, and insists that nothing is settled twice."""

    def __init__(self) -> None:
        self.by_index: dict[int, ItemOutcome] = {}

    def settle(self, outcomes: Sequence[tuple[int, ItemOutcome]]) -> None:
        for index, outcome in outcomes:
            assert index not in self.by_index, f"item {index} was settled twice"
            self.by_index[index] = outcome

    def backends(self) -> list[str]:
        """Return who answered each item, after checking that it was the item's own answer."""
        found = []
        for index, outcome in sorted(self.by_index.items()):
            assert outcome.failure is None, outcome.failure
            result = msgspec.json.decode(outcome.result)
            assert result["echo"] == f"text {index}"
            found.append(result["backend"])
        return found

    def failures(self) -> list[ItemFailure]:
        """Return the failures, by index."""
        ordered = [outcome for _, outcome in sorted(self.by_index.items())]
        return [outcome.failure for outcome in ordered if outcome.failure is not None]

    def codes(self) -> list[str]:
        """Return the codes of the failures, by index."""
        return [failure.code for failure in self.failures()]


async def call_backend(
    client: BackendClient,
    target: Endpoint,
    call: Call,
    *,
    deadline: float,
    idle_timeout: float,
    receive: Receive,
) -> Report:
    """Return the report that ends a call, or raise what does; cancelled with its caller."""
    ended: asyncio.Future[Report] = asyncio.get_running_loop().create_future()

    def on_end(how: Report | BaseException) -> None:
        if isinstance(how, Report):
            ended.set_result(how)
        else:
            ended.set_exception(how)

    started = client.start_call(
        target,
        call,
        deadline=deadline,
        idle_timeout=idle_timeout,
        receive=receive,
        on_end=on_end,
    )
    try:
        return await ended
    finally:
        if not ended.done() or ended.cancelled():
            started.cancel()


async def dispatch(
    runner: WorkRunner,
    given: GivenWork,
    *,
    deadline: float,
    settle: Settle,
    traceparent: str = "",
) -> None:
    """Run items, and return when all of them are settled; cancelled with its caller."""
    started = Started(given, deadline=deadline, settle=settle, traceparent=traceparent)
    started.start(runner)
    try:
        await started.ended.wait()
    except asyncio.CancelledError:
        started.cancel()
        raise
    finally:
        started.items = []  # they refer to what owns them
