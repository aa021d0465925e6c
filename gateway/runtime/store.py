"""Holds the current runtime, and swaps it for the next one when everything is prepared."""

from collections.abc import Awaitable, Callable

from gateway.runtime.runtime import Runtime


class RuntimeStore:
    """The one place that says which generation is current.

    `prepare` hooks may wait and may refuse, by raising; nothing has changed then. `swap` callbacks
    follow the change, at once and in order of registration, and must not fail.
    """

    def __init__(self, initial: Runtime) -> None:
        self.current = initial
        self._prepare: list[Callable[[Runtime], Awaitable[None]]] = []
        self._swapped: list[Callable[[Runtime], None]] = []

    def on_prepare(self, hook: Callable[[Runtime], Awaitable[None]]) -> None:
        """Ask `hook` before every change; it makes what the next runtime needs, or raises."""
        self._prepare.append(hook)

    def on_swap(self, callback: Callable[[Runtime], None]) -> None:
        """Tell `callback` of every change, in the same turn of the loop as the change."""
        self._swapped.append(callback)

    async def swap(self, runtime: Runtime) -> None:
        """Prepare `runtime` completely, then make it current.

        Raises:
            Exception: what a `prepare` hook raised (nothing has changed), or an `ExceptionGroup`
                of what callbacks raised (it is current, and every callback was told).
        """
        for hook in self._prepare:
            await hook(runtime)
        self.current = runtime
        failures = []
        for callback in self._swapped:
            try:
                callback(runtime)
            except Exception as error:  # noqa: BLE001 - one callback must not keep others from it
                failures.append(error)
        if failures:
            raise ExceptionGroup("the runtime was swapped and some did not take it", failures)
