"""Limits the memory of open sessions by closing the least recently used ones.

A batch for a closed session waits until the session is open again.
"""

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from typing_extensions import override

from sluicegate.backends.errors import ExecutorDied, ModelProblem, OutOfMemory
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.types import FloatArray

_log = logging.getLogger(__name__)


class SessionMemory:
    """Closes the least recently used sessions while open sessions use more than `max_bytes`.

    A session in use is never closed, so busy models may exceed the limit.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # Reentrant: garbage collection of an executor calls `_remove`, perhaps while the lock is
        # held.
        self._lock = threading.RLock()
        self._open: OrderedDict[weakref.ref[ResidentExecutor], int] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        """The bytes of all open sessions."""
        with self._lock:
            return sum(self._open.values())

    def opened(self, executor: "ResidentExecutor", size_bytes: int) -> None:
        """Count the session that an executor has just opened; close other sessions to make room."""
        with self._lock:
            self._open[weakref.ref(executor, self._remove)] = size_bytes
            for reference in list(self._open):
                if self.size_bytes <= self._max_bytes:
                    return
                other = reference()
                if other is not None and other is not executor and other.close():
                    self._remove(reference)

    def used(self, executor: "ResidentExecutor") -> None:
        """Mark an executor as the most recently used one."""
        with self._lock:
            reference = weakref.ref(executor)
            if reference in self._open:
                self._open.move_to_end(reference)

    def _remove(self, reference: "weakref.ref[ResidentExecutor]") -> None:
        with self._lock:
            self._open.pop(reference, None)


class ResidentExecutor(ModelExecutor):
    """Wraps an executor whose session can be closed while not in use, and is reopened on demand."""

    def __init__(
        self,
        open_executor: Callable[[], ModelExecutor],
        *,
        name: str,
        size_bytes: int,
        memory: SessionMemory,
    ) -> None:
        self._open_executor = open_executor
        self._name = name
        self._size_bytes = size_bytes
        self._memory = memory
        self._lock = threading.Lock()
        self._users = 0
        inner = open_executor()
        self._inner: ModelExecutor | None = inner
        # All later sessions have the same properties.
        self.provider = inner.provider
        self.worker_threads = inner.worker_threads
        self.dimensions, self.joined = inner.dimensions, inner.joined
        self.cost, self.wide_cost = inner.cost, inner.wide_cost
        memory.opened(self, size_bytes)

    @property
    def is_open(self) -> bool:
        """Whether the session is open."""
        return self._inner is not None

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        with self._using() as inner:
            return inner.run(batch)

    @override
    def run_wide(self, batch: PaddedBatch) -> FloatArray:
        with self._using() as inner:
            return inner.run_wide(batch)

    def close(self) -> bool:
        """Close the session if it is not in use; return whether it was closed."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._users:
                return False
            self._inner = None
        finally:
            self._lock.release()
        _log.info("closed a session to free memory", extra={"model": self._name})
        return True

    @contextmanager
    def _using(self) -> Iterator[ModelExecutor]:
        reopened = False
        with self._lock:
            if self._inner is None:
                self._inner, reopened = self._reopen(), True
            inner = self._inner
            self._users += 1
        if reopened:
            self._memory.opened(self, self._size_bytes)
        else:
            self._memory.used(self)
        try:
            yield inner
        finally:
            with self._lock:
                self._users -= 1

    def _reopen(self) -> ModelExecutor:
        try:
            return self._open_executor()
        except (ModelProblem, OutOfMemory) as error:
            raise ExecutorDied("cannot reopen the model's session") from error
