"""Detects that the GPU of this process is lost, or that a model has broken it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from sluicegate.backends.serving.core import ServingCore
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.nvml import GpuReader
from sluicegate.wire.gpus import GPU_PROVIDERS
from sluicegate.wire.protocol import GpuState

# Seconds between two readings, and the timeout of the driver for one reading.
_INTERVAL, _ANSWERS_WITHIN = 1.0, 10.0
# The timeout is split into this many waits. If something blocks the event loop, such as the opening
# of a large model, the blocked time uses up only one of the waits.
_WAITS: Final = 10
# The GPU counts as lost after this many failed readings in a row, or once an error says so.
_FAILED_LOOKS: Final = 3
_GPU_IS_LOST, _RESET_REQUIRED = 15, 16

Look = Callable[[], GpuState | int]


class DeviceWatch:
    """Reads the state of a GPU once a second, in its own threads, because the driver may hang.

    `look` returns the GPU's state, or an error number of the driver. `seen` is called with each
    state. `failures` returns permanent failures of the device and of encoders. Any failure ends the
    watch.
    """

    def __init__(
        self,
        look: Look,
        *,
        failures: Callable[[], list[str]],
        seen: Callable[[GpuState], None],
        interval: float = _INTERVAL,
        answers_within: float = _ANSWERS_WITHIN,
    ) -> None:
        self._look = look
        self._failures = failures
        self._seen = seen
        self._interval = interval
        self._answers_within = answers_within

    async def until_failed(self) -> str:
        """Watch until this process can no longer use the GPU; return the reason."""
        failed_looks = 0
        while True:
            found = await self._answer()
            if found is None:
                return f"the driver has not answered for {self._answers_within:g} s"
            if isinstance(found, GpuState):
                failed_looks = 0
                self._seen(found)
            else:
                failed_looks += 1
                if found in (_GPU_IS_LOST, _RESET_REQUIRED) or failed_looks == _FAILED_LOOKS:
                    return f"the driver reports that the GPU is lost (error {found})"
            if failures := self._failures():
                return "; ".join(failures)
            await asyncio.sleep(self._interval)

    async def _answer(self) -> GpuState | int | None:
        """Return the result of `look`, or `None` after the timeout."""
        answer = _in_thread(self._look)
        for _ in range(_WAITS):
            done, _ = await asyncio.wait([answer], timeout=self._answers_within / _WAITS)
            if done:
                return answer.result()
        return None


def watch_device(
    settings: BackendSettings, core: ServingCore, gpus: GpuReader
) -> DeviceWatch | None:
    """Return a watch over the GPU that runs the models, or `None` if none of `gpus` runs them."""
    look = _look_at_device(settings, gpus)
    if look is None:
        return None

    def seen(state: GpuState) -> None:
        core.gpu = state

    return DeviceWatch(look, failures=core.failures, seen=seen)


@contextmanager
def watch_while_loading(
    settings: BackendSettings, gpus: GpuReader, failed: Callable[[str], None]
) -> Iterator[None]:
    """Call `failed` with the reason, in a thread, if the GPU fails during the `with` block.

    The watch has its own thread, so the `with` block may block the event loop.
    """
    look = _look_at_device(settings, gpus)
    if look is None:
        yield
        return
    with watched_in_thread(look, failed):
        yield


@contextmanager
def watched_in_thread(look: Look, failed: Callable[[str], None]) -> Iterator[None]:
    """Call `failed` with the reason, in a thread, if `look` fails during the `with` block."""
    ended = threading.Event()
    watch = DeviceWatch(
        look, failures=lambda: ["ended"] if ended.is_set() else [], seen=lambda _: None
    )

    def run() -> None:
        reason = asyncio.run(watch.until_failed())
        if not ended.is_set():
            failed(reason)

    threading.Thread(target=run, name="loading-watch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _look_at_device(settings: BackendSettings, gpus: GpuReader) -> Look | None:
    if settings.provider not in GPU_PROVIDERS or settings.device >= len(gpus.uuids):
        return None
    return partial(gpus.read_device, gpus.uuids[settings.device])


def _in_thread(look: Look) -> "asyncio.Future[GpuState | int]":
    """Call `look` in a daemon thread, because it may never return."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[GpuState | int] = loop.create_future()

    def settle(found: GpuState | int) -> None:
        if not answer.done():
            answer.set_result(found)

    def run() -> None:
        found = look()
        with suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=run, name="device-watch", daemon=True).start()
    return answer
