"""Runs items in the process of a model owner's algorithm, and restarts the process when it fails.

A step is the code that a task runs between two awaits. The backend treats a process as failed when
the process

- ends,
- is still in a step of an item shortly after the time limit of the item,
- ignores a cancellation, or
- uses too much memory or too many threads.

The backend kills a failed process and starts a new one. It refuses the item whose step was running,
and runs the other items again. If the backend does not know whose step was running, it runs the
items again, one at a time, until one of them makes a process fail.

The time of an item does not include steps of other items, calls to models, or waits for a processor
core. If a process failed only because it got too little time on a core, the backend blames no item,
and callers can send their items again.
"""

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from sluicegate.backends.algorithms.budget import Budget
from sluicegate.backends.algorithms.host_messages import (
    CancelModelRequest,
    CancelRequest,
    ModelReply,
    ModelRequest,
    RunReply,
    RunRequest,
)
from sluicegate.backends.algorithms.host_process import HostProcess, HostProtocol
from sluicegate.backends.algorithms.hosted_item import HostedItem
from sluicegate.backends.algorithms.refused_items import RefusedItems
from sluicegate.backends.algorithms.starvation import ProcessTime
from sluicegate.backends.algorithms.step_marks import SLOTS, Step
from sluicegate.backends.errors import AlgorithmFailed, BackendError, ItemRefused, Overloaded
from sluicegate.wire.protocol import encode_frame

_log = logging.getLogger(__name__)
_MOST_WAITING = 4_096
_MOST_THREADS = 64
# Above this number of threads, or this fraction of the memory budget, the process is replaced
# as soon as it runs no item.
_WORN_THREADS, _WORN = 24, 0.8
# Above this fraction of the memory budget, the process is killed.
_OVER = 1.25
_MOST_RUNS = 4
_WATCH_INTERVAL = 0.2
# The grace period of a step after its item's time limit, and the time in which a step must react to
# a cancellation, in seconds.
_GRACE = 0.1
_CANCELLATION = 1.0
# Seconds before an equal error is logged again, and the number of errors that are remembered.
_LOG_INTERVAL, _MOST_LOGGED = 10.0, 64
# Delays of restarts, and a quiet time, in seconds. The first restart is immediate. The second
# restart waits for the first delay. Each later restart waits twice as long as the previous restart,
# up to the longest delay. After a quiet time without failures, a restart is immediate again.
_FIRST_DELAY, _LONGEST_DELAY, _QUIET = 0.25, 10.0, 30.0


class AlgorithmHost:
    """Owns the process of one algorithm and queues items for it.

    `open` is safe in any thread; all other methods belong to the event loop.
    """

    def __init__(
        self,
        *,
        name: str,
        budget: Budget,
        start: Callable[[bool], HostProcess],
        on_lost: Callable[[str], None],
    ) -> None:
        self._name = name
        self._budget = budget
        self._start = start
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._process: HostProcess | None = None
        self._link: asyncio.WriteTransport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._watching: asyncio.TimerHandle | None = None
        self._waiting: deque[HostedItem] = deque()
        self._running: dict[int, HostedItem] = {}
        self._slots = list(range(SLOTS))
        self._numbers = itertools.count()
        self._refused = RefusedItems()
        self._logged: dict[str, float] = {}
        self._lost_at, self._delay = -_QUIET, 0.0
        self._was_used, self._is_worn, self._is_low, self._busy = False, False, False, 0.0
        self._long_step: Step | None = None
        self._long_step_delay = 0.0

    def open(self) -> None:
        """Start the process if it is not running.

        Raises:
            ValueError: the code cannot be imported.
        """
        with self._lock:
            if self._process is None:
                self._process = self._start(self._lost_at >= 0)
                if self._delay:  # earlier processes failed in quick succession
                    self._process.lower_priority()

    def close(self) -> None:
        """Kill the process and refuse all items. A later item starts the process again."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        items = [*self._running.values(), *self._waiting]
        self._waiting.clear()
        self._drop_process()
        for item in items:
            item.end()
        self._refuse(items, "the backend ended the algorithm's process; try again")

    async def answer(self, item: HostedItem) -> bytes:
        """Return the JSON of an item's result.

        Raises:
            ItemRefused: the algorithm refused the item or was too slow, or the item made a process
                fail a short while ago.
            AlgorithmFailed: the code raised an error.
            BackendError: a model that the algorithm called failed, or no process is available.
        """
        loop = asyncio.get_running_loop()
        self._refused.check(item.digest, loop.time())
        wait = self._lost_at + self._delay - loop.time()
        if self._process is None and wait > 0:
            raise Overloaded("the algorithm's process is restarting; try again", retry_after=wait)
        if len(self._waiting) >= _MOST_WAITING:
            detail = "the algorithm's queue is full; try again"
            raise Overloaded(detail, retry_after=self._budget.time)
        self._waiting.append(item)
        self._pump()
        try:
            return await item.outcome
        finally:
            self._leave(item)

    def _pump(self) -> None:
        """Send queued items to the process while it has free slots."""
        if self._link is None:
            if self._waiting and self._opening is None:
                self._opening = asyncio.create_task(self._open())
            return
        if self._is_worn:
            if not self._running:
                self._lose("worn by earlier items", None)
            return
        while self._waiting and self._slots:
            # Suspects, which may have ended a process, are at the front of the queue and run alone.
            is_alone = self._waiting[0].is_suspect
            if self._running and (is_alone or any(i.is_suspect for i in self._running.values())):
                return
            self._run(self._waiting.popleft(), self._link)

    async def _open(self) -> None:
        try:
            await asyncio.sleep(self._lost_at + self._delay - asyncio.get_running_loop().time())
            await self._open_in_thread()
            process = self._live()
            loop = asyncio.get_running_loop()
            protocol = HostProtocol(
                linked=self._linked,
                received=self._received,
                ended=partial(self._ended, process),
            )
            await loop.create_connection(lambda: protocol, sock=process.link)
        except (ValueError, OSError, RuntimeError) as error:
            _log.error("cannot start an algorithm's process", extra=self._fields(str(error)))
            self._on_lost("not started")
            self._drop_process()
            self._delay_next()
            waiting, self._waiting = self._waiting, deque()
            self._refuse(waiting, "the algorithm's process does not start; try again later")
        finally:
            if self._opening is asyncio.current_task():  # else `close` has ended this opening
                self._opening = None
        self._pump()

    async def _open_in_thread(self) -> None:
        starting = asyncio.create_task(asyncio.to_thread(self.open))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread goes on, and may start a process that nobody needs any more.
            starting.add_done_callback(self._drop_unneeded)
            raise

    def _drop_unneeded(self, starting: "asyncio.Task[None]") -> None:
        if not starting.cancelled():
            starting.exception()  # a later start reports it
        if self._opening is None and self._link is None:
            self._drop_process()

    def _refuse(self, items: Iterable[HostedItem], reason: str) -> None:
        for item in items:
            item.is_waiting = False
            if not item.outcome.done():
                item.outcome.set_exception(Overloaded(reason, retry_after=self._delay))

    def _linked(self, transport: asyncio.WriteTransport) -> None:
        self._link = transport
        self._was_used, self._is_worn, self._is_low, self._busy = True, False, self._delay > 0, 0.0
        self._live().delay()  # so that it is known
        self._watching = asyncio.get_running_loop().call_later(_WATCH_INTERVAL, self._watch)

    def _live(self) -> HostProcess:
        if self._process is None:
            raise RuntimeError("the algorithm's process has ended")
        return self._process

    def _run(self, item: HostedItem, link: asyncio.WriteTransport) -> None:
        loop = asyncio.get_running_loop()
        item.slot, item.number = self._slots.pop(), next(self._numbers)
        item.started = loop.time()
        process = self._live()
        item.busy_before = process.marks.busy_of_others(item.slot)
        item.delay_before = process.known_delay
        item.begin()
        self._running[item.number] = item
        item.timer = loop.call_later(self._budget.time, self._on_time, item)
        request = RunRequest(
            number=item.number,
            slot=item.slot,
            item=msgspec.Raw(item.item),
            parameters=msgspec.Raw(item.parameters),
        )
        link.write(encode_frame(request))

    def _received(self, message: Any) -> None:
        item = self._running.get(getattr(message, "number", -1))
        if item is None:
            return
        if isinstance(message, ModelRequest):
            if not item.outcome.done():
                item.call_model(message, self._send)
        elif isinstance(message, CancelModelRequest):
            item.cancel_call(message.call)
        elif isinstance(message, RunReply):
            self._end(item)
            self._settle(item, message)
            self._pump()

    def _send(self, reply: ModelReply) -> None:
        if self._link is not None:
            self._link.write(encode_frame(reply))

    def _end(self, item: HostedItem) -> None:
        item.end()
        del self._running[item.number]
        self._slots.append(item.slot)
        self._was_used = True

    def _settle(self, item: HostedItem, reply: RunReply) -> None:
        if item.outcome.done():
            return
        if reply.end == "done":
            item.outcome.set_result(reply.result)
            return
        error: BackendError = AlgorithmFailed(reply.detail)
        if reply.end == "refused":
            error = ItemRefused(reply.code, reply.detail)
        elif reply.end == "passed_on":
            error = item.errors.get(reply.code, error)
        else:
            self._log_failure(reply.trace or reply.detail)
        item.outcome.set_exception(error)

    def _log_failure(self, trace: str) -> None:
        """Log an error of the algorithm's code. Skip repetitions, which could flood the log."""
        now = asyncio.get_running_loop().time()
        if self._logged.get(trace, -_LOG_INTERVAL) > now - _LOG_INTERVAL:
            return
        if len(self._logged) >= _MOST_LOGGED:
            self._logged.clear()
        self._logged[trace] = now
        _log.error("an algorithm failed", extra={"model": self._name, "error": trace})

    def _leave(self, item: HostedItem) -> None:
        """Remove an item that no caller waits for; cancel it if it runs."""
        if self._running.get(item.number) is not item:
            if item.is_waiting:
                self._waiting.remove(item)
            return
        item.outcome.cancel()
        item.end()
        if self._link is not None:
            self._link.write(encode_frame(CancelRequest(number=item.number)))
        self._check_again(item, _CANCELLATION, self._on_not_cancelled, self._clock(item))

    def _clock(self, item: HostedItem) -> ProcessTime:
        """Return how long ago the item began, and how long it has waited for a core, in seconds."""
        process = self._live()
        others = process.marks.busy_of_others(item.slot) - item.busy_before
        now = asyncio.get_running_loop().time()
        elapsed = now - item.started - others - item.model_seconds
        return ProcessTime(
            elapsed=elapsed,
            delay=max(0.0, min(process.delay() - item.delay_before, elapsed)),
        )

    def _check_again(
        self, item: HostedItem, after: float, check: Callable[..., None], *values: object
    ) -> None:
        delay = max(after, _GRACE)
        item.timer = asyncio.get_running_loop().call_later(delay, check, item, *values)

    def _on_time(self, item: HostedItem) -> None:
        """End an item whose time is over, or check again later if waits extended its time."""
        clock = self._clock(item)
        if (left := clock.left(self._budget.time)) > 0:
            self._check_again(item, left, self._on_time)
            return
        step = self._live().marks.step()
        if step is not None and step.slot == item.slot:
            self._check_again(item, _GRACE, self._on_held, step.began, clock)
        else:
            self._end_late(item, clock)

    def _on_held(self, item: HostedItem, began: int, clock: ProcessTime) -> None:
        step, now = self._live().marks.step(), self._clock(item)
        if step is None or step.began != began or not self._is_known(item):
            self._end_late(item, clock)
        elif (left := now.since(clock).left(_GRACE)) > 0:
            self._check_again(item, left, self._on_held, began, clock)
        elif clock.is_starved(self._budget.time):
            self._end_late(item, clock)
            self._lose("starved", item, is_blamed=False)
        else:
            self._lose("held by one step", item)

    def _end_late(self, item: HostedItem, clock: ProcessTime) -> None:
        if item.outcome.done():
            return
        time = self._budget.time
        error: BackendError = ItemRefused(
            "algorithm_too_slow",
            f"the algorithm took more than its {time:g} s for this item",
        )
        if clock.is_starved(time):
            error = Overloaded(
                f"the machine is busy: the algorithm waited {clock.delay:.1f} of "
                f"{clock.elapsed:.1f} s for a processor core; try again",
                retry_after=time,
            )
        item.outcome.set_exception(error)

    def _on_not_cancelled(self, item: HostedItem, clock: ProcessTime) -> None:
        """Kill the process if it ignored the cancellation of an item.

        While a step of another item runs, the process cannot react, so the process gets more time.
        """
        step, since = self._live().marks.step(), self._clock(item).since(clock)
        if step is not None and step.slot != item.slot:
            self._check_again(item, _CANCELLATION, self._on_not_cancelled, clock)
        elif (left := since.left(_CANCELLATION)) > 0:
            self._check_again(item, left, self._on_not_cancelled, clock)
        elif since.is_starved(_CANCELLATION):
            self._lose("starved", item, is_blamed=False)
        else:
            self._lose("held after its time", item if self._is_known(item) else None)

    def _is_known(self, item: HostedItem) -> bool:
        """Return whether it is certain that this item blocks the process."""
        return self._live().marks.are_exact or list(self._running.values()) == [item]

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._watching = loop.call_later(_WATCH_INTERVAL, self._watch)
        usage = self._live().usage()
        if usage is None:
            return
        used, self._busy = usage.busy - self._busy, usage.busy
        if self._is_held(used):
            self._live().lower_priority()
        is_idle, self._was_used = not (self._was_used or self._running), bool(self._running)
        memory = usage.resident_bytes / self._budget.memory_bytes
        has_recovered = self._is_low and loop.time() - self._lost_at >= _QUIET
        # RLIMIT_DATA usually stops allocations before this check finds too much memory. The check
        # allows more than the budget, because resident memory includes libraries.
        if memory > _OVER:
            self._lose("over its memory", None)
        elif usage.threads > _MOST_THREADS:
            self._lose("over its threads", None)
        elif is_idle and used > _WATCH_INTERVAL / 2:
            self._lose("busy without an item", None)
        elif memory > _WORN or usage.threads > _WORN_THREADS or has_recovered:
            self._is_worn = True
            self._pump()

    def _is_held(self, used: float) -> bool:
        """Return whether one step has taken long, or code without step marks has used a core."""
        process = self._live()
        step, before = process.marks.step(), self._long_step
        if step is None or before is None or step.began != before.began:
            self._long_step, self._long_step_delay = step, process.delay()
        elif step.elapsed - (process.delay() - self._long_step_delay) > _WATCH_INTERVAL:
            return True
        return not process.marks.are_exact and used > _WATCH_INTERVAL / 2

    def _ended(self, process: HostProcess) -> None:
        if process is self._process:
            self._lose("ended", None)

    def _lose(self, reason: str, item: HostedItem | None, *, is_blamed: bool = True) -> None:
        """Kill the process, refuse the item that blocked or ended it, and rerun the other items.

        If `is_blamed` is false, `item` already has an outcome, and its caller can send the item
        again.
        """
        loop, marks = asyncio.get_running_loop(), self._live().marks
        running = list(self._running.values())
        if item is None:
            item = _culprit(running, marks.step(), is_exact=marks.are_exact and reason == "ended")
        _log.error("an algorithm's process was lost", extra=self._fields(reason))
        self._on_lost(reason)
        self._drop_process()
        if is_blamed:
            self._delay_next()
        if item is not None and is_blamed:
            self._refused.add(item.digest, loop.time())
        for each in reversed(running):
            each.end()
            if each.outcome.done():
                continue
            if each is item:
                each.outcome.set_exception(self._refused.error(reason))
            elif each.runs >= _MOST_RUNS:
                self._refuse([each], "the algorithm's process failed too often; try again later")
            else:
                each.is_suspect |= item is None
                each.is_waiting = True
                self._waiting.appendleft(each)
        self._pump()

    def _drop_process(self) -> None:
        process, self._process = self._process, None
        link, self._link = self._link, None
        if self._watching is not None:
            self._watching.cancel()
        self._running.clear()
        self._slots = list(range(SLOTS))
        if link is not None:
            link.abort()
        elif process is not None:
            process.link.close()
        if process is not None:
            process.kill()

    def _delay_next(self) -> None:
        now = asyncio.get_running_loop().time()
        is_quiet = now - self._lost_at >= _QUIET
        self._lost_at = now
        longer = max(_FIRST_DELAY, min(2 * self._delay, _LONGEST_DELAY))
        self._delay = 0.0 if is_quiet else longer

    def _fields(self, reason: str) -> dict[str, object]:
        return {"model": self._name, "reason": reason, "items": len(self._running)}


def _culprit(running: list[HostedItem], step: Step | None, *, is_exact: bool) -> HostedItem | None:
    """Return the item that made the process fail, or `None` if no item certainly did."""
    if len(running) == 1 and running[0].is_suspect:
        return running[0]
    if not is_exact or step is None:
        return None
    return next((item for item in running if item.slot == step.slot), None)
