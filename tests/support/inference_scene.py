"""Builds the inference use case over small fakes, and requests for it."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import msgspec
from typing_extensions import override

from sluicegate.gateway.cache.base import NullTier
from sluicegate.gateway.cache.entry import CachedResult, CacheHit, Validity
from sluicegate.gateway.cache.key import CacheKey, KeyMaker
from sluicegate.gateway.cache.result_cache import ResultCache
from sluicegate.gateway.config.document import CacheConfig, Document, ModelConfig
from sluicegate.gateway.dispatch import failures
from sluicegate.gateway.dispatch.work import OpenItem, Work, run, settle, settle_failed
from sluicegate.gateway.inference.coalescing import Flights
from sluicegate.gateway.inference.inference import Inference
from sluicegate.gateway.inference.last_answers import LastAnswers, Refresher
from sluicegate.gateway.inference.prepared_request import PreparedRequest
from sluicegate.gateway.inference.storing import AnswerStore
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.types import (
    Answer,
    CacheDirectives,
    Caller,
    Criticality,
    InferenceRequest,
    ItemFailure,
    ItemOutcome,
    KeyId,
    ModelName,
    Principal,
    RegionName,
    ServedModel,
    Source,
    TenantId,
)
from sluicegate.wire.protocol import ClassifyParameters, ModelInfo, Task
from tests.support.clock import Clock

T = TypeVar("T")
_LATE = ItemFailure(status=504, code="deadline_exceeded", detail="Late.")
INFO = ModelInfo(
    name="sentiment",
    revision="aaaaaaaaaaaa",
    profile="fp32",
    tasks=[Task.CLASSIFY],
    algorithm="head",
    algorithm_version=1,
    max_tokens=256,
)


class Models:
    """A table of models that tests change."""

    def __init__(self, *infos: ModelInfo) -> None:
        self.infos = {info.name: info for info in infos}
        self.bug: Exception | None = None
        self._served: dict[str, ServedModel] = {}

    def model(self, name: str) -> ServedModel | None:
        """Return the model of that name."""
        if self.bug is not None:
            raise self.bug
        info = self.infos.get(name)
        if info is None:
            return None
        served = self._served.get(name)
        if served is None or served.info is not info:
            # The same object while nothing changes, as the fleet's: what was decided holds.
            served = self._served[name] = ServedModel(info=info, regions=(RegionName("eu"),))
        return served

    def models(self) -> list[ServedModel]:
        """Return all models."""
        return [served for name in self.infos if (served := self.model(name)) is not None]

    def models_version(self) -> int:
        """Return another number when there are more or fewer."""
        return len(self.infos)

    def knows_models(self) -> bool:
        """Tell whether there is any."""
        return bool(self.infos)


class DictCache:
    """A result cache of one tier that `peek` and `lookup` both see, or `peek` does not."""

    def __init__(self, wall: Clock) -> None:
        self.wall = wall
        self.has_memory = True
        self.peeks = 0
        self.released: list[CacheKey] = []
        self.claims: list[bool] = []
        """Whether each look-up could claim what it did not find."""
        self.on_release: Callable[[], None] = lambda: None
        self.entries: dict[CacheKey, CachedResult] = {}
        self.before_lookup: Callable[[], None] = lambda: None

    def has(self, address: bytes) -> bool:
        """Tell whether there is an entry."""
        return any(key.address == address for key in self.entries)

    def peek(self, key: CacheKey, now: float) -> CachedResult | None:
        """Return the entry unless it is too old."""
        self.peeks += 1
        entry = self.entries.get(key) if self.has_memory else None
        return entry if entry is not None and entry.expires_at > now else None

    def entry_of(self, key: CacheKey) -> CachedResult | None:
        """Return the entry."""
        return self.entries.get(key) if self.has_memory else None

    def _found(self, keys: Sequence[CacheKey], is_valid: Validity | None) -> list[CacheHit | None]:
        entries = [self.entries.get(key) for key in keys]
        self.before_lookup()
        return [
            CacheHit(entry=entry, tier="redis")
            if entry and (is_valid is None or is_valid(entry, self.wall()))
            else None
            for entry in entries
        ]

    def lookup_nowait(
        self,
        keys: Sequence[CacheKey],
        on_done: Callable[[list[CacheHit | None]], object],
        is_valid: Validity | None = None,
        *,
        claims: bool = False,
    ) -> None:
        """Tell of the entries that are there then, as if from Redis."""
        self.claims.append(claims)
        asyncio.get_running_loop().call_soon(lambda: on_done(self._found(keys, is_valid)))

    def release_unused(self, keys: Sequence[CacheKey]) -> None:
        """Note that they were released."""
        self.released += keys
        self.on_release()

    def store_all(self, entries: Sequence[tuple[CacheKey, CachedResult]]) -> None:
        """Keep the entries."""
        self.entries.update(entries)


class StartedItems(msgspec.Struct):
    """Items that a runner was given."""

    work: Work
    items: list[OpenItem]


class GatedRunner:
    """Answers each item with its own body once `gate` is set.

    `failure` fails all instead; `bug` is raised with nothing settled.
    """

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.started: list[StartedItems] = []
        self.tasks = RecordedTasks()
        self.cancelled: list[OpenItem] = []
        self.failure: ItemFailure | None = None
        self.bug: Exception | None = None
        self.result: Callable[[bytes], bytes] = msgspec.json.encode
        """Makes the result of an item's body."""

    @property
    def works(self) -> list[Work]:
        """What the items of each start share."""
        return [each.work for each in self.started]

    @property
    def begun(self) -> int:
        """How many items have begun."""
        return sum(len(each.items) for each in self.started)

    def start(self, items: Sequence[OpenItem]) -> None:
        """Settle every item, at the latest at the deadline."""
        self.started.append(StartedItems(items[0].work, list(items)))
        if self.bug is not None:
            raise self.bug
        run(self.tasks, self._run(items), items)

    def cancel(self, items: Collection[OpenItem]) -> None:
        """Settle what is open as cancelled."""
        self.cancelled += items
        settle_failed(items, failures.CANCELLED)

    async def _run(self, items: Sequence[OpenItem]) -> None:
        try:
            async with asyncio.timeout_at(items[0].work.deadline):
                await self.gate.wait()
        except TimeoutError:
            settle_failed(items, _LATE)
        else:
            for item in items:
                settle([(item, self._outcome(item.body))])

    @property
    def computed(self) -> list[bytes]:
        """The bodies that were run, in order."""
        return [item.body for each in self.started for item in each.items]

    def _outcome(self, body: bytes) -> ItemOutcome:
        if self.failure is not None:
            return ItemOutcome(source=Source.FAILED, failure=self.failure)
        return ItemOutcome(
            source=Source.COMPUTED, result=self.result(body), rows=1, tokens=5, input_tokens=5
        )


class FailsOnce(GatedRunner):
    """Answers what comes after the first failure."""

    @override
    async def _run(self, items: Sequence[OpenItem]) -> None:
        await super()._run(items)
        self.failure = None


class FailingRunner(GatedRunner):
    """Fails the first item at once, and never ends the others by itself."""

    def __init__(self, failure: ItemFailure) -> None:
        super().__init__()
        self.failure = failure

    @override
    async def _run(self, items: Sequence[OpenItem]) -> None:
        settle([(items[0], self._outcome(items[0].body))])
        try:
            async with asyncio.timeout_at(items[0].work.deadline):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            settle_failed(items, _LATE)


class NoClaims:
    """Has no claims that could end."""

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """See `ItemOwner`."""


class RecordedTasks:
    """Records the tasks that the use case started."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work`."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.append(task)
        return task


class Scene:
    """Holds the use case and its fakes, to be inspected and changed.

    With `tiers` the result cache is the real one, in memory and in `remote`.
    """

    def __init__(
        self,
        *,
        tiers: bool = False,
        tracer: Tracer | None = None,
        runner: GatedRunner | None = None,
        remote: NullTier | None = None,
        lane: Literal["interactive", "bulk"] = "interactive",
    ) -> None:
        self.models = Models(INFO)
        self.wall = Clock(1_000.0)
        self.cache = DictCache(self.wall)
        self.runner = runner or GatedRunner()
        self.flights = Flights()
        self._known_runtime: Runtime | None = None
        self.principals: dict[str, Principal] = {}
        self.tiers = ResultCache(
            CacheConfig(), make_remote=lambda _: remote or NullTier(), clock=self.wall
        )
        cache = self.tiers if tiers else self.cache
        self.document = Document()
        self.epochs: dict[str, int] = {}
        store = AnswerStore(cache=cache, claims=NoClaims(), flights=self.flights, wall=self.wall)
        refresher = Refresher(
            runner=self.runner, owner=store, is_computed=self.flights.__contains__
        )
        self.last_answers = LastAnswers(cache=cache, refresher=refresher, wall=self.wall)
        self.inference = Inference(
            models=self.models,
            keys=KeyMaker(secret=b"secret"),
            cache=cache,
            last_answers=self.last_answers,
            flights=self.flights,
            owner=store,
            runner=self.runner,
            tracer=tracer or Tracer(),
            lane=lane,
            wall=self.wall,
        )

    @staticmethod
    def loop_time() -> float:
        """Return the clock that deadlines refer to."""
        return asyncio.get_running_loop().time()

    def configure(self, **entry: object) -> None:
        """Give the model's entry in the document these values."""
        models = {"sentiment": msgspec.convert(entry, ModelConfig)}
        self.document = msgspec.structs.replace(self.document, models=models)

    def _runtime(self) -> Runtime:
        """Return the runtime of what is configured now: the same one while that stays."""
        known = self._known_runtime
        if known is None or known.document is not self.document or known.epochs != self.epochs:
            known = self._known_runtime = Runtime(
                generation=1,
                document=self.document,
                endpoints=(),
                epochs=MappingProxyType(dict(self.epochs)),
            )
        return known

    def prepared(
        self,
        *texts: str,
        tenant: str = "t1",
        within: float = 5.0,
        model: str = "sentiment",
        task: Task = Task.CLASSIFY,
        directives: CacheDirectives | None = None,
        criticality: Criticality = Criticality.DEFAULT,
        continue_on_error: bool = False,
        truncate: bool = True,
        deadline: float | None = None,
    ) -> tuple[PreparedRequest, Caller]:
        """Return a prepared request for `texts`, and its caller."""
        request = InferenceRequest(
            task=task,
            model=ModelName(model),
            parameters=msgspec.msgpack.encode(ClassifyParameters()),
            items=tuple(text.encode() for text in texts),
            continue_on_error=continue_on_error,
            truncate=truncate,
        )
        caller = Caller(
            principal=self.principals.setdefault(
                tenant, Principal(tenant=TenantId(tenant), key=KeyId("k"))
            ),
            deadline=deadline or asyncio.get_running_loop().time() + within,
            directives=directives or CacheDirectives(),
            criticality=criticality,
        )
        return self.inference.prepare(request, caller.principal, self._runtime()), caller

    async def ask(self, *texts: str, **asked: Any) -> Answer:
        """Return the answer for `texts`, from memory, Redis or the runner."""
        prepared, caller = self.prepared(*texts, **asked)
        answer = self.inference.from_memory(prepared, caller.directives)
        if answer is not None:
            return answer
        outcomes: list[ItemOutcome | None] = [None] * len(texts)
        if prepared.may_read(caller.directives):
            found: asyncio.Future[list[CacheHit | None]] = asyncio.Future()
            self.inference.lookup_nowait(prepared, found.set_result, caller.directives)
            outcomes = self.inference.hits(prepared, await found)
        return await self.compute(prepared, caller, outcomes)

    async def compute(
        self, prepared: PreparedRequest, caller: Caller, outcomes: list[ItemOutcome | None]
    ) -> Answer:
        """Return what `Inference.compute` answers. Cancel the request if the task is cancelled."""
        hits = [outcome for outcome in outcomes if outcome is not None]
        if len(hits) == len(outcomes):
            return Answer(model=prepared.plan.model, outcomes=hits)
        answered: asyncio.Future[Answer] = asyncio.Future()

        def on_done(answer: Answer | Exception) -> None:
            if isinstance(answer, Exception):
                answered.set_exception(answer)
            else:
                answered.set_result(answer)

        waits = self.inference.compute(prepared, caller, outcomes, on_done)
        try:
            return await answered
        except asyncio.CancelledError:
            waits.cancel()
            raise


def sources(answer: Answer) -> list[Source]:
    """Return how each item ended."""
    return [outcome.source for outcome in answer.outcomes]
