"""Identifies the GPU and samples its utilization."""

import shutil
import subprocess
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec

_INTERVAL = 0.1
_QUERY = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The device as its driver names it, empty without one."""

    name: str = ""
    memory_mib: int = 0
    driver: str = ""


def this_device(number: int) -> Device:
    """Return the device, by `nvidia-smi`."""
    query = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    text = _smi(number, *query)
    if text is None or text.count(",") != 2:
        return Device()
    name, memory, driver = (part.strip() for part in text.split(","))
    return Device(name=name, memory_mib=int(float(memory)), driver=driver)


class UtilizationSampler:
    """Samples, while it is entered, the share of time in which a kernel ran on the device."""

    def __init__(self, number: int) -> None:
        self._read = _reader(number)
        self._samples: list[float] = []
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()
        self._thread.join()

    @property
    def share(self) -> float | None:
        """The mean of the samples; `None` where nothing can be read."""
        return round(sum(self._samples) / len(self._samples), 3) if self._samples else None

    def _sample(self) -> None:
        while not self._left.wait(_INTERVAL):
            value = self._read()
            if value is None:
                return
            self._samples.append(value)


def _reader(number: int) -> Callable[[], float | None]:
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415

        library: Any = pynvml
        library.nvmlInit()
        handle = library.nvmlDeviceGetHandleByIndex(number)
    except Exception:  # noqa: BLE001 - a missing package, driver or device: ask the program
        return lambda: _utilization(number)
    return lambda: float(library.nvmlDeviceGetUtilizationRates(handle).gpu) / 100


def _utilization(number: int) -> float | None:
    text = _smi(number, *_QUERY)
    try:
        return float(text) / 100 if text is not None else None
    except ValueError:
        return None


def _smi(number: int, *arguments: str) -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--id={number}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    return done.stdout.strip() if done.returncode == 0 else None
