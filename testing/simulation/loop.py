"""The event loop of a simulated process: asyncio's own, above simulated sockets and time."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from testing.simulation.hashing import numbers

if TYPE_CHECKING:
    from testing.simulation.machines import Process

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_Selector: Any = vars(selectors)["_BaseSelectorImpl"]
_cancel_all_tasks: Final = vars(asyncio.runners)["_cancel_all_tasks"]


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set depends on nothing but the run."""

    @override
    def __hash__(self) -> int:
        return numbers.of(self)


class NumberedFuture(asyncio.Future[Any]):
    """A future whose place in a set depends on nothing but the run."""

    @override
    def __hash__(self) -> int:
        return numbers.of(self)


class SimulatedSelector(_Selector):  # type: ignore[misc]
    """Waits for simulated sockets in virtual time."""

    def __init__(self, process: "Process") -> None:
        super().__init__()
        self._process = process
        self._scheduler = process.machine.scheduler
        self._touched: dict[int, None] = {}
        """Sockets that may be ready, in the order in which they became so."""
        self._is_woken = False

    def touch(self, descriptor: int) -> None:
        """Look at a socket, which may have become ready."""
        if descriptor in self._fd_to_key:
            self._touched[descriptor] = None
            self.wake()

    def wake(self) -> None:
        """End the present wait, or the next one at once."""
        self._is_woken = True
        self._scheduler.wake(self._process.main)

    @override
    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key: selectors.SelectorKey = super().register(fileobj, events, data)
        socket = self._process.machine.network.sockets.get(key.fd)
        if socket is None:
            self.unregister(fileobj)
            raise ValueError(f"descriptor {key.fd} is no simulated socket")
        socket.selector = self
        self._touched[key.fd] = None
        return key

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready sockets. Takes virtual time, in which other threads run."""
        if (timeout is not None and timeout <= 0) or self._is_woken or self._ready():
            self._is_woken = False
            self._scheduler.pause()
        else:
            until = None if timeout is None else self._process.machine.clock.after(timeout)
            self._scheduler.wait(until if until is None else max(until, self._scheduler.now + 1e-6))
            self._is_woken = False
        return self._ready()

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        ready = []
        sockets = self._process.machine.network.sockets
        for descriptor in list(self._touched):
            key, socket = self._fd_to_key.get(descriptor), sockets.get(descriptor)
            events = 0
            if key is not None and socket is not None:
                events |= _READ if socket.is_readable() else 0
                events |= _WRITE if socket.is_writable() else 0
                events &= key.events
            if events:
                ready.append((key, events))
            else:
                del self._touched[descriptor]
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop, in virtual time. Each simulated process has its own."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._clock = process.machine.clock
        self._signals: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._simulated = SimulatedSelector(process)
        super().__init__(self._simulated)
        # They are not freed: a transport that is freed open warns, but processes may end so.
        self._transports: dict[int, asyncio.Transport] = {}

    @override
    def time(self) -> float:
        return self._clock.monotonic()

    @override
    def run_forever(self) -> None:
        scheduler = self._process.machine.scheduler
        scheduler.has_loop(self)
        try:
            super().run_forever()
        finally:
            scheduler.has_loop(None)

    @override
    def create_future(self) -> "asyncio.Future[Any]":
        return NumberedFuture(loop=self)

    @override
    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> "asyncio.Task[Any]":
        if self.get_task_factory() is not None:
            return super().create_task(coro, name=name, context=context)
        return NumberedTask(coro, loop=self, name=name, context=context)

    @override
    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self._signals[sig] = (callback, args)

    @override
    def remove_signal_handler(self, sig: int) -> bool:
        return self._signals.pop(sig, None) is not None

    def signal(self, number: int) -> bool:
        """Call the handler of a signal soon; return whether there is one."""
        if number not in self._signals:
            return False
        callback, args = self._signals[number]
        self.call_soon_threadsafe(callback, *args)
        return True

    def abandon(self) -> None:
        """Count all transports as closed, so that streams of an ended process warn of nothing."""
        for transport in list(vars(self)["_transports"].values()):
            vars(transport)["_closing"] = True

    def _make_self_pipe(self) -> None:
        """Do nothing: threads of the process wake the selector."""

    def _close_self_pipe(self) -> None:
        """Do nothing: there is no pipe."""

    def _write_to_self(self) -> None:
        self._simulated.wake()


def run_main(process: "Process", main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run `main` on the loop of a process as `asyncio.run` does, and return its result.

    The loop is not closed: what its transports hold would be freed, while the process only ends.
    """
    loop = process.loop = SimulatedLoop(process)
    try:
        return loop.run_until_complete(main())
    finally:
        _cancel_all_tasks(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
