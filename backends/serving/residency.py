"""Loads encoders when calls need them, and evicts encoders when their memory is needed.

Without a bound of the memory, all encoders are loaded from the start and stay loaded.
"""

import asyncio
import contextlib
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import msgspec

from sluicegate.backends.batching.batcher import Batcher
from sluicegate.backends.batching.coalescing import RowCoalescer
from sluicegate.backends.errors import (
    BackendError,
    CallRefused,
    ModelProblem,
    NotReady,
    Overloaded,
    RevisionMismatch,
)
from sluicegate.backends.open_inference.address import RemoteModelServer
from sluicegate.backends.pipelines.encoder import Encoder
from sluicegate.backends.serving.eviction import EvictionPolicy
from sluicegate.backends.types import EncoderStatistics, ResidencyStatistics, add_loads
from sluicegate.wire.durations import SECONDS, DurationCounts
from sluicegate.wire.protocol import ModelState

_log = logging.getLogger(__name__)
# Seconds that a call waits for a load at most. After a longer silence, a gateway could take the
# backend for one that hangs.
_LONGEST_WAIT = 3.0
# The share of a call's time that may pass before the model is loaded.
_WAIT_SHARE = 0.8
# The time of a first load is estimated by the model's size.
_LEAST_TIME, _BYTES_PER_SECOND = 0.1, 500e6
# The loading thread's share of a busy core is a third of another thread's share.
_NICENESS = 5
_LEARNING = 0.25
# Loads that may wait for their turn.
_MOST_WAITING = 32
# Calls that may wait for loads.
_MOST_CALLS = 64
# Seconds that a load waits for models in use, and between two checks whether they are still in use.
_ROOM_TIMEOUT, _ROOM_INTERVAL = 5.0, 0.01
# Seconds for which later loads may take the room that the oldest load waits for.
_PASSING_TIME = 0.5


class RunningEncoder(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a loaded encoder: its pipeline, batcher and rows.

    `digest` identifies the model's files. `precision` is the precision in use; on a GPU it may
    differ from the declared precision. With an `upstream`, another server runs the graph, and
    `is_well` checks that this server works.
    """

    name: str
    digest: str
    precision: str
    pipeline: Encoder
    batcher: Batcher
    rows: RowCoalescer
    tokenization: Callable[[], tuple[tuple[int, ...], float]] = lambda: ((), 0.0)
    """Returns the tokenizer's durations: counts by bucket, and the sum in seconds."""
    portions: Callable[[], int] = lambda: 0
    """Returns how many chunks of text the tokenizer has read."""
    upstream: RemoteModelServer | None = None
    is_well: Callable[[], bool] = lambda: True

    @property
    def failure(self) -> str | None:
        """The reason why a thread of the encoder has ended; `None` while all threads run."""
        return self.batcher.failure or self.pipeline.failure

    def statistics(self) -> EncoderStatistics:
        """Return the counts since the load."""
        return EncoderStatistics(
            name=self.name,
            queue=self.batcher.statistics(),
            rows=self.rows.statistics(),
            tokenization=self.tokenization(),
        )

    def discard(self) -> None:
        """Free an encoder whose threads were never started."""
        self.batcher.discard()
        self.pipeline.close()


class DeclaredEncoder:
    """Describes an encoder; `running` holds it while it is loaded.

    `digest` identifies the model's files. `load` loads them, and blocks the calling thread.
    `load_time` is the expected time of a load in seconds. The encoder is not evicted while `users`
    is not 0, nor if it `stays`.
    """

    def __init__(
        self,
        *,
        name: str,
        digest: str,
        precision: str,
        size_bytes: int,
        pipeline: Encoder,
        load: Callable[[], RunningEncoder],
        stays: bool,
    ) -> None:
        self.name = name
        self.digest = digest
        self.precision = precision
        self.size_bytes = size_bytes
        self.pipeline = pipeline
        self.load = load
        self.load_time = _LEAST_TIME + size_bytes / _BYTES_PER_SECOND
        self.stays = stays
        self.running: RunningEncoder | None = None
        self.is_loading = False
        self.users = 0
        self.past: EncoderStatistics | None = None
        """The counts of all loads before the last eviction; `None` if it was never evicted."""
        self.problem: str | None = None
        """Why the last load failed; `None` if it did not fail."""

    @property
    def failure(self) -> str | None:
        """Why the encoder cannot be used again; `None` if it can."""
        return self.problem if self.running is None else self.running.failure

    def statistics(self) -> EncoderStatistics | None:
        """Return the counts of all loads; `None` if the encoder was never loaded."""
        if self.running is None:
            return self.past
        present = self.running.statistics()
        return present if self.past is None else add_loads(self.past, present)


class NotLoaded(CallRefused):
    """Reports that a call needs encoders that are not loaded."""

    status = NotReady.status
    code = NotReady.code

    def __init__(self, encoders: Sequence[DeclaredEncoder]) -> None:
        super().__init__("the model is not loaded")
        self.encoders = encoders


class _Load:
    """Loads all encoders that a call needs; calls that need the same encoders share it."""

    def __init__(self, encoders: Sequence[DeclaredEncoder]) -> None:
        self.encoders = encoders
        self.room_until: float | None = None
        """The time until which the load waits for room; `None` before its first turn."""
        self.ended = asyncio.Event()
        self.error: BackendError | None = None
        self._is_user = False
        self.waiting = 0
        """The number of calls that wait for the load, or use what it has loaded."""

    @property
    def seconds(self) -> float:
        """The expected time of the load."""
        return sum(each.load_time for each in self.encoders if each.running is None)

    @property
    def new_bytes(self) -> int:
        """The size of the encoders that are not loaded."""
        return sum(each.size_bytes for each in self.encoders if each.running is None)

    def begin(self) -> None:
        """Count the load as a user of its encoders."""
        if self.room_until is None:
            self.room_until = time.monotonic() + _ROOM_TIMEOUT
        self._hold(is_user=True)

    def end(self) -> None:
        """Count the load as a user of its encoders no longer."""
        self._hold(is_user=False)

    def _hold(self, *, is_user: bool) -> None:
        if self._is_user is not is_user:
            self._is_user = is_user
            for each in self.encoders:
                each.users += 1 if is_user else -1


class Residency:
    """Owns the loaded encoders: starts their threads, and keeps their sizes within `max_bytes`.

    One load runs at a time, in a thread. A load waits while all memory is in use. Meanwhile, later
    loads run if they have room. Soon they run only if they leave room for the waiting load. `retry`
    is called when a load has failed. `in_background` returns the names of encoders that mirrored
    items use. It belongs to the event loop.
    """

    def __init__(
        self, *, max_bytes: int, retry: Callable[[], object], has_threads: bool = False
    ) -> None:
        """`has_threads` means that loads start threads, which run models."""
        self._max_bytes = max_bytes
        self._retry = retry
        self.in_background: Callable[[], Collection[str]] = tuple
        self._policy = EvictionPolicy()
        self._present: Sequence[DeclaredEncoder] = ()
        """The encoders of the models that are served now, which may be evicted."""
        self._earlier: Sequence[DeclaredEncoder] = ()
        """The encoders of earlier revisions, which are evicted first."""
        self._started: dict[int, RunningEncoder] = {}
        self._sizes: dict[int, int] = {}
        self._queue: asyncio.Queue[_Load] = asyncio.Queue()  # `_loads` bounds it
        self._loads: dict[frozenset[DeclaredEncoder], _Load] = {}
        # Threads that a load starts would inherit its priority.
        lower = None if has_threads else _lower_priority
        self._thread = ThreadPoolExecutor(1, "model-load", initializer=lower)
        self._task: asyncio.Task[None] | None = None
        self._outcomes: Counter[str] = Counter()
        self._evictions: Counter[str] = Counter()
        self._durations = DurationCounts(SECONDS)

    @property
    def is_bounded(self) -> bool:
        """Whether models are loaded on demand."""
        return self._max_bytes > 0

    @property
    def size_bytes(self) -> int:
        """The size of all loaded encoders."""
        return sum(self._sizes.values())

    def use(self, encoders: Sequence[DeclaredEncoder]) -> None:
        """Count a call that uses these encoders.

        Raises:
            NotLoaded: an encoder is not loaded.
            NotReady: an encoder could not be loaded.
        """
        if not self.is_bounded:
            return
        if any(each.running is None for each in encoders):
            for each in encoders:
                if each.problem is not None:
                    raise NotReady(f"`{each.name}` cannot be loaded: {each.problem}")
            raise NotLoaded(encoders)
        for each in encoders:
            self._count(each)

    def _count(self, encoder: DeclaredEncoder) -> None:
        self._policy.use(encoder.name, load_time=encoder.load_time, size_bytes=encoder.size_bytes)

    @asynccontextmanager
    async def loaded(
        self, encoders: Sequence[DeclaredEncoder], *, time_left: float
    ) -> AsyncIterator[None]:
        """Wait until all `encoders` are loaded; none of them is evicted in the `async with` block.

        Raises:
            Overloaded: they are not loaded in `time_left` seconds, or too many calls wait. The load
                goes on.
            NotReady: an encoder cannot be loaded.
        """
        load = self._request(encoders)
        expected, patience = self._expected(load), min(time_left * _WAIT_SHARE, _LONGEST_WAIT)
        if expected > patience:
            raise _late(expected)
        if sum(each.waiting for each in self._loads.values()) >= _MOST_CALLS:
            raise _late(expected)
        load.waiting += 1
        try:
            try:
                async with asyncio.timeout(patience):
                    await load.ended.wait()
            except TimeoutError:
                raise _late(self._expected(load)) from None
            if load.error is not None:
                raise load.error
            yield
        finally:
            load.waiting -= 1
            self._end_use(load)

    def _request(self, encoders: Sequence[DeclaredEncoder]) -> _Load:
        key = frozenset(encoders)
        if (load := self._loads.get(key)) is None:
            if len(self._loads) > _MOST_WAITING:
                raise _late(sum(each.seconds for each in self._loads.values()))
            load = self._loads[key] = _Load(encoders)
            self._queue.put_nowait(load)
        return load

    def _expected(self, load: _Load) -> float:
        """Return the seconds until a load ends, after the loads that were requested before."""
        seconds = 0.0
        for each in self._loads.values():
            seconds += each.seconds
            if each is load:
                break
        return seconds

    async def _run(self) -> None:
        while True:
            load = await self._queue.get()
            load.begin()
            if await self._try(load):
                self._end(load)
                continue
            # Two loads that wait for room may need to evict each other's encoders.
            load.end()
            self._queue.put_nowait(load)
            if all(each.room_until is not None for each in self._loads.values()):
                await asyncio.sleep(_ROOM_INTERVAL)

    async def _try(self, load: _Load) -> bool:
        """Return whether a load has ended; `False` if it waits for room."""
        try:
            if not await self._make_room(load):
                return False
            for each in load.encoders:
                if each.running is None:
                    await self._load(each)
        except BackendError as error:
            load.error = error
        except Exception:  # noqa: BLE001 - a bug must not end the loads of other models
            _log.exception("a load failed unexpectedly")
            load.error = NotReady("the model cannot be loaded; see the backend's log")
        return True

    def _end(self, load: _Load) -> None:
        del self._loads[frozenset(load.encoders)]
        load.ended.set()
        self._end_use(load)

    def _end_use(self, load: _Load) -> None:
        if load.ended.is_set() and not load.waiting:
            load.end()

    async def _load(self, encoder: DeclaredEncoder) -> None:
        began = time.monotonic()
        encoder.is_loading = True
        try:
            running = await self._open(encoder)
        except Exception as error:  # a broken model must not end the loads of other models
            self._outcomes["failed"] += 1
            encoder.problem = str(error)
            _log.error("cannot load a model", extra={"model": encoder.name, "reason": str(error)})
            self._retry()
            raise NotReady(f"`{encoder.name}` cannot be loaded: {error}") from error
        finally:
            encoder.is_loading = False
        seconds = time.monotonic() - began
        # Other work slows single loads, and the policy should not rank models by such chance.
        encoder.load_time += _LEARNING * (seconds - encoder.load_time)
        self._durations.add(seconds)
        self._outcomes["loaded"] += 1
        if encoder not in self._present and encoder not in self._earlier:
            running.discard()
            raise RevisionMismatch(f"the revision of `{encoder.name}` was replaced meanwhile")
        encoder.running = running
        self._count(encoder)
        await self.start([encoder])

    async def _open(self, encoder: DeclaredEncoder) -> RunningEncoder:
        running = await asyncio.get_running_loop().run_in_executor(self._thread, encoder.load)
        running.pipeline.tokenizer.move_here()
        if running.precision != encoder.precision:
            running.discard()
            raise ModelProblem(
                f"it was declared in `{encoder.precision}`, but loaded in "
                f"`{running.precision}`; the next reload declares it anew"
            )
        return running

    async def _make_room(self, load: _Load) -> bool:
        """Evict models so that the encoders of `load` fit; return whether they fit.

        Raises:
            Overloaded: the models in memory have been in use for too long.
        """
        if self._has_turn(load) and await self._evict_for(load.new_bytes):
            return True
        if time.monotonic() >= (load.room_until or 0.0):
            self._outcomes["refused"] += 1
            raise Overloaded(
                "all models in memory are in use; try again later", retry_after=_ROOM_TIMEOUT
            )
        return False

    def _has_turn(self, load: _Load) -> bool:
        """Return whether a load may run now. Small loads must not pass a large one for long."""
        oldest = next(iter(self._loads.values()))
        began = (oldest.room_until or math.inf) - _ROOM_TIMEOUT
        if oldest is load or not load.new_bytes or time.monotonic() < began + _PASSING_TIME:
            return True
        needed = sum(each.size_bytes for each in {*oldest.encoders, *load.encoders})
        return max(needed, self.size_bytes + load.new_bytes) <= self._max_bytes

    async def _evict_for(self, wanted: int = 0) -> bool:
        """Evict models so that `wanted` more bytes fit; return whether they fit."""
        excess = self.size_bytes + wanted - self._max_bytes
        if excess <= 0:
            return True
        for each in self._idle(self._earlier):
            await self._evict(each)
            excess -= each.size_bytes
            if excess <= 0:
                return True
        idle = {each.name: each for each in self._idle(self._present) if not each.stays}
        sizes = {name: each.size_bytes for name, each in idle.items()}
        victims = [idle[name] for name in self._policy.victims(sizes, excess_bytes=excess)]
        for each in victims:
            await self._evict(each)
        return bool(victims)

    def _idle(self, encoders: Iterable[DeclaredEncoder]) -> list[DeclaredEncoder]:
        busy = self.in_background()
        return [
            each
            for each in encoders
            if each.running is not None
            and not (each.users or each.name in busy)
            and each.running.batcher.is_idle
        ]

    async def _evict(self, encoder: DeclaredEncoder) -> None:
        nothing = EncoderStatistics(name=encoder.name)
        before = encoder.past or nothing
        running, encoder.running = encoder.running, None
        if running is not None:
            encoder.past = add_loads(add_loads(before, running.statistics()), nothing)
            self._policy.evict(encoder.name)
            self._evictions[encoder.name] += 1
            running.pipeline.close()
            await self._stop([running])
            # A thread may count its last batch after the batch's rows have been delivered.
            encoder.past = add_loads(add_loads(before, running.statistics()), nothing)
            running.batcher.free()

    async def start(self, encoders: Iterable[DeclaredEncoder]) -> None:
        """Start the threads of those encoders that are loaded."""
        for each in encoders:
            if each.running is not None and id(each.running.batcher) not in self._started:
                self._started[id(each.running.batcher)] = each.running
                self._sizes[id(each.running.batcher)] = each.size_bytes
                await each.running.batcher.__aenter__()

    async def _stop(self, encoders: Iterable[RunningEncoder]) -> None:
        for each in encoders:
            if self._started.pop(id(each.batcher), None) is not None:
                await each.batcher.__aexit__(None, None, None)
                del self._sizes[id(each.batcher)]

    async def serve(
        self, present: Sequence[DeclaredEncoder], earlier: Iterable[DeclaredEncoder] = ()
    ) -> None:
        """Take up the encoders of the models that are served from now on.

        `earlier` are those that only calls of an earlier revision use.
        """
        self._present = present
        self._earlier = [each for each in earlier if each not in present and each.size_bytes]
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        if self.is_bounded:
            await self._evict_for()

    async def keep(self, encoders: Iterable[DeclaredEncoder]) -> None:
        """Stop all other encoders, now or when their loads end."""
        encoders = list(encoders)
        self._earlier = [each for each in self._earlier if each in encoders]
        needed = {id(each.running.batcher) for each in encoders if each.running is not None}
        await self._stop([e for place, e in self._started.items() if place not in needed])

    async def close(self) -> None:
        """Stop all loads and all encoders."""
        for load in self._loads.values():
            load.error = NotReady("the backend is stopping; try another one")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for load in list(self._loads.values()):
            load.begin()
            self._end(load)
        await asyncio.to_thread(self._thread.shutdown)
        await self._stop(list(self._started.values()))

    def state(self, encoders: Iterable[DeclaredEncoder]) -> ModelState:
        """Return the state of a model that needs these encoders."""
        cold = [each for each in encoders if each.running is None]
        if not cold:
            return "loaded"
        return "loading" if any(each.is_loading for each in cold) else "declared"

    def statistics(self) -> ResidencyStatistics:
        """Return the size of the loaded models, and the counts since the start."""
        return ResidencyStatistics(
            size_bytes=self.size_bytes,
            outcomes=dict(self._outcomes),
            evictions=dict(self._evictions),
            durations=self._durations.seen(),
        )


def _lower_priority() -> None:
    """Give the calling thread a lower priority than the threads that run models."""
    with contextlib.suppress(OSError):  # only Linux has priorities of threads
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _late(seconds: float) -> Overloaded:
    return Overloaded("the model is loading; try again later", retry_after=max(seconds, 0.1))
