"""Reads the queues of the simulated product, and compares them with their bounds.

The objects of the product are found when they are constructed: `watch_objects` must be called
before the processes start.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sluicegate.backends.api.server import BackendServer
from sluicegate.backends.batching.submission import _MAX_WAITING_QUEUES, SubmissionQueue
from sluicegate.backends.batching.vector_cache import VectorCache
from sluicegate.gateway.cache.memory_tier import MemoryTier
from sluicegate.gateway.events.block import STREAM
from sluicegate.gateway.events.syncing import LogSync
from sluicegate.gateway.http.unsent_answers import LIMIT_BYTES
from sluicegate.gateway.inference.coalescing import Flights
from sluicegate.gateway.redis.pipeline import _Connection
from sluicegate.gateway.routing.endpoint_state import EndpointState
from sluicegate.gateway.upstream.http import _Channel
from sluicegate.wire.byte_budget import SharedBytes
from sluicegate.wire.http.connection import ServerState
from testing.simulation.machines import Process, current_process
from testing.simulation.redis_server.data import RedisData
from testing.simulation.redis_server.values import Stream
from testing.simulation.world.invariants import SYNC, Disturbance

_MOST_BLOCKS: Final = 1000
"""Blocks in the stream of events, as in the shipper."""
_LATE: Final = 0.1
"""Seconds that a timer may be late."""


class Level(NamedTuple):
    """How full a queue is. `is_at_rest` says whether it must be empty without requests."""

    name: str
    value: float
    most: float
    is_at_rest: bool = False


def _submissions(queue: Any, _: Process) -> Iterator[Level]:
    limits = queue._limits  # noqa: SLF001 - as all that follows, it has no other reader
    # An empty queue takes any item.
    first = max((row.length for row in queue._incoming), default=0)  # noqa: SLF001
    yield Level("rows that wait", queue.rows, limits.rows, True)
    yield Level("tokens that wait", queue.tokens, max(limits.tokens, first))
    room = queue._room_queue.rows  # noqa: SLF001
    yield Level("rows that wait for room", room, _MAX_WAITING_QUEUES * limits.rows, True)


def _vectors(cache: Any, _: Process) -> Iterator[Level]:
    yield Level("bytes of cached rows", cache.size_bytes, cache._max_bytes)  # noqa: SLF001


def _memory(tier: Any, _: Process) -> Iterator[Level]:
    found = tier.statistics()
    yield Level("bytes of cached results", found.used_bytes, found.capacity_bytes)


def _budget(budget: Any, _: Process) -> Iterator[Level]:
    yield Level("held bytes", budget.used_bytes, budget.limit_bytes, True)
    yield Level("requests that wait for bytes", budget.waits, budget._most_waiting, True)  # noqa: SLF001


def _calls(channel: Any, _: Process) -> Iterator[Level]:
    yield Level("calls to a backend", channel.limit - channel.free, channel.limit, True)
    yield Level("calls that wait for a backend", len(channel.waiting), float("inf"), True)


def _pipeline(connection: Any, process: Process) -> Iterator[Level]:
    """Yield for how long a batch of commands has waited too long for its replies."""
    sent = connection._sent_batches  # noqa: SLF001
    if sent and process.loop is not None and not process.is_paused:
        late = process.loop.time() - sent[0].timer.when()
        yield Level("seconds after the timeout of Redis", late, _LATE)


def _connections(state: Any, _: Process) -> Iterator[Level]:
    yield Level("connections", len(state.connections), state.timeouts.connections)
    unsent = sum(each.writer.unsent_bytes() for each in state.connections)
    most = float("inf") if isinstance(state.side, BackendServer) else LIMIT_BYTES
    yield Level("bytes of unsent answers", unsent, most, True)


def _flights(flights: Any, _: Process) -> Iterator[Level]:
    yield Level("items in flight", flights.statistics().in_flight, float("inf"), True)


def _endpoint(state: Any, _: Process) -> Iterator[Level]:
    yield Level("items at an endpoint", state.in_flight, float("inf"), True)


def _unsynced(sync: Any, process: Process) -> Iterator[Level]:
    since = sync._waits_since  # noqa: SLF001
    if since is not None and process.loop is not None:
        yield Level(UNSYNCED, process.loop.time() - since, SYNC)


UNSYNCED: Final = "seconds of unsynced usage events"
_READERS: Final[Mapping[type, Callable[[Any, Process], Iterator[Level]]]] = {
    SubmissionQueue: _submissions,
    VectorCache: _vectors,
    MemoryTier: _memory,
    SharedBytes: _budget,
    _Channel: _calls,
    _Connection: _pipeline,
    ServerState: _connections,
    Flights: _flights,
    EndpointState: _endpoint,
    LogSync: _unsynced,
}
_watched: Final[set[type]] = set()
_found: Final[dict[Process, list[tuple[type, Any]]]] = {}


def watch_objects() -> None:
    """Remember the queues that processes construct from now on. Further calls do nothing."""
    for kind in _READERS:
        if kind not in _watched:
            _watched.add(kind)
            _watch(kind)


def _watch(kind: Any) -> None:
    construct = kind.__init__

    def construct_and_remember(self: Any, *args: Any, **options: Any) -> None:
        construct(self, *args, **options)
        process = current_process()
        if process is not None:
            _found.setdefault(process, []).append((kind, self))

    kind.__init__ = construct_and_remember


class Bounds:
    """Reads all queues. `redis` is the data of each state Redis."""

    def __init__(self, redis: Mapping[str, RedisData], faults: Sequence[Disturbance]) -> None:
        self._redis = redis
        self._faults = faults

    def exceeded(self) -> Iterator[tuple[str, str]]:
        """Yield each bound that is exceeded now, as a name and a sentence."""
        for where, level in self._levels():
            if level.value > level.most and not self._is_excused(where, level):
                name = f"{level.name} in {where}"
                yield name, f"{name}: {level.value:g}, above {level.most:g}"

    def left(self) -> Iterator[str]:
        """Yield each queue that is not empty although there are no requests."""
        for where, level in self._levels():
            if level.is_at_rest and level.value:
                yield f"{level.name} in {where}, at rest: {level.value:g}"

    def _levels(self) -> Iterator[tuple[str, Level]]:
        for process, objects in list(_found.items()):
            if not process.is_alive:
                del _found[process]
                continue
            for kind, each in objects:
                for level in _READERS[kind](each, process):
                    yield process.label, level
        for name, data in self._redis.items():
            stream = data.find(STREAM.encode(), Stream)
            yield name, Level("blocks in the stream", len(stream or ()), _MOST_BLOCKS)

    def _is_excused(self, where: str, level: Level) -> bool:
        """Return whether a fault of the disk or the process explains unsynced events."""
        if level.name != UNSYNCED:
            return False
        machine = where.split("/", maxsplit=1)[0]
        return any(machine in fault.machines for fault in self._faults)
