"""Holds the current runtime, and prepares the next one before it becomes current."""

from collections.abc import Awaitable, Callable

from sluicegate.gateway.runtime.runtime import Runtime


class RuntimeStore:
    """Holds the current runtime.

    `on_prepare` hooks run before a change. A hook can wait, and can refuse the change by raising an
    error. `on_swap` callbacks run right after the change, in the order of their registration. These
    callbacks must not fail.
    """

    def __init__(self, initial: Runtime) -> None:
        self.current = initial
        self._prepare: list[Callable[[Runtime], Awaitable[None]]] = []
        self._swapped: list[Callable[[Runtime], None]] = []

    def on_prepare(self, hook: Callable[[Runtime], Awaitable[None]]) -> None:
        """Await `hook` before every change. It prepares the next runtime, or raises an error."""
        self._prepare.append(hook)

    def on_swap(self, callback: Callable[[Runtime], None]) -> None:
        """Call `callback` with every change, in the same event-loop iteration."""
        self._swapped.append(callback)

    async def swap(self, runtime: Runtime) -> None:
        """Prepare `runtime` completely, then make it current.

        Raises:
            Exception: a hook has raised it. Nothing has changed.
            ExceptionGroup: callbacks have raised errors. The runtime is current, and every callback
                was called.
        """
        for hook in self._prepare:
            await hook(runtime)
        self.current = runtime
        failures = []
        for callback in self._swapped:
            try:
                callback(runtime)
            except Exception as error:  # noqa: BLE001 - the other callbacks must learn of the change
                failures.append(error)
        if failures:
            raise ExceptionGroup("the runtime was swapped, but some callbacks failed", failures)
