"""Finds the GPUs that models can run on, by asking NVIDIA's driver.

The module uses only the standard library.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

GPU_PROVIDERS: Final = ("cuda", "tensorrt")
"""The providers of `SLUICEGATE_BACKEND_PROVIDER` that run models on a GPU."""
LEAST_CUDA: Final = (13, 0)
"""The CUDA version that ONNX Runtime's wheel is built for."""
LEAST_DRIVER: Final = 580
"""The first branch of the driver that supports this CUDA version."""
LEAST_COMPUTE_CAPABILITY: Final = (7, 5)
PATIENCE: Final = 30.0
"""Timeout in seconds for the driver. Without persistence mode, it first starts all cards."""

_MANAGEMENT, _CUDA = "libnvidia-ml.so.1", "libcuda.so.1"
# Folders of the driver's libraries in containers and WSL, which are often not on a search path.
_FOLDERS: Final = ("", "/usr/local/nvidia/lib64/", "/usr/lib/wsl/lib/")
_TEXT_BYTES: Final = 96
_EXCLUSIVE_PROCESS: Final = 3
_NO_PERMISSION, _NOT_LOADED, _OTHER_VERSION = 4, 9, 18
_REFUSALS: Final = {
    _NO_PERMISSION: "this user may not use the NVIDIA driver",
    _NOT_LOADED: "the NVIDIA driver is installed, but not loaded",
    _OTHER_VERSION: "the NVIDIA driver and its libraries have different versions; restart the "
    "machine",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device that models can run on: a card, or a MIG device of a card.

    `index` is the driver's number of the card; all MIG devices of a card have the same number. If a
    device is exclusive (compute mode `EXCLUSIVE_PROCESS`), only one process at a time can use it.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    is_mig: bool
    is_exclusive: bool = False


@dataclass(frozen=True, slots=True)
class GpusFound:
    """The GPUs that models can run on, and the driver's version.

    `reason` tells why there is no GPU; it is empty if there is one. If `answers` is false, do not
    call the driver in this process, because the call may never return.
    """

    gpus: tuple[Gpu, ...]
    driver: str
    reason: str
    answers: bool = True


class Memory(ctypes.Structure):
    """NVML's `nvmlMemory_t`, in bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def find_gpus(patience: float = PATIENCE) -> GpusFound:
    """Return the GPUs of this machine that `CUDA_VISIBLE_DEVICES` makes visible.

    A child process calls the driver, and gets up to `patience` seconds. A process whose driver call
    hangs cannot end, so this process makes no such call. No CUDA context is created.
    """
    if driver_library() is None:
        return _none("this machine has no NVIDIA driver")
    command = [sys.executable, "-I", "-S", __file__, "--json"]
    child = subprocess.Popen(  # noqa: S603 - this file
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    try:
        answer, _ = child.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(1)
        return _no_answer(f"the NVIDIA driver has not answered for {patience:g} s")
    if child.returncode:
        return _no_answer(f"the process that called the NVIDIA driver exited: {child.returncode}")
    return _decoded(answer)


def driver_library() -> Any:
    """Return the driver's management library (NVML), or `None`."""
    return load_library(_MANAGEMENT)


def cuda_library() -> Any:
    """Return the driver's CUDA library, or `None`.

    Afterwards, other libraries in this process can load `libcuda.so.1` by its bare name.
    """
    return load_library(_CUDA)


def load_library(name: str, folders: Sequence[str] = _FOLDERS) -> Any:
    """Return a library of the driver, from the first of `folders` that has it, or `None`."""
    for folder in folders:
        try:
            return ctypes.CDLL(folder + name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    return None


def open_devices(library: Any) -> list[tuple[Gpu, ctypes.c_void_p]]:
    """Return every working device with its handle in the library.

    For a card in MIG mode, only its MIG devices are returned.
    """
    found = []
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        card = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(card)):
            continue
        pending = ctypes.byref(ctypes.c_uint())
        is_mig = bool(_mode(library.nvmlDeviceGetMigMode, card, pending))
        capability = _compute_capability(library, card)
        for handle in _parts(library, card) if is_mig else (card,):
            uuid = text_of(library.nvmlDeviceGetUUID, handle)
            name = text_of(library.nvmlDeviceGetName, handle)
            memory = Memory()
            if not library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
                alone = _mode(library.nvmlDeviceGetComputeMode, handle) == _EXCLUSIVE_PROCESS
                gpu = Gpu(index, uuid, name, memory.total, capability, is_mig, alone)
                found.append((gpu, handle))
    return found


def visible_gpus(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES` lists, in the order of the list.

    If the variable is not set, return all GPUs.

    The entries are numbers of cards, UUIDs or beginnings of UUIDs. As in CUDA, all entries from the
    first one that does not match exactly one device are ignored. The number of a card with MIG
    devices selects its first MIG device. If a device is listed twice, no GPU is visible.
    """
    names = _visible_devices()
    if names is None:
        return list(gpus)
    chosen: list[Gpu] = []
    for name in map(str.strip, names.split(",")):
        named = [gpu for gpu in gpus if str(gpu.index) == name][:1]
        if name and not named:
            named = [gpu for gpu in gpus if gpu.uuid.startswith(name)]
        if len(named) != 1:
            break
        if named[0] in chosen:
            return []
        chosen += named
    return chosen


def _visible_devices() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")  # noqa: TID251 - settings.py needs packages


def text_of(function: Any, *arguments: object) -> str:
    """Return the text that a function of the library writes, or "" if it fails."""
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    failed = function(*arguments, text, ctypes.c_uint(_TEXT_BYTES))
    return "" if failed else text.value.decode(errors="replace")


def _ask() -> GpusFound:
    """Call the driver. This function runs in the child process of `find_gpus`."""
    library = driver_library()
    try:
        if code := library.nvmlInit_v2():
            told = _REFUSALS.get(code, f"the NVIDIA driver cannot be used (error {code})")
            return _none(f"{told}; run `nvidia-smi` for details")
        try:
            return _find(library)
        finally:
            library.nvmlShutdown()
    except AttributeError:  # the library lacks a function
        return _none(f"the NVIDIA driver is too old; install version {LEAST_DRIVER} or newer")


def _find(library: Any) -> GpusFound:
    driver = text_of(library.nvmlSystemGetDriverVersion)
    if reason := _why_no_cuda(library, driver):
        return _none(reason, driver)
    found = [gpu for gpu, _ in open_devices(library)]
    if not found:
        told = f"the NVIDIA driver {driver} has no device that models can run on"
        return _none(f"{told}; `nvidia-smi -L` lists its GPUs and MIG devices", driver)
    able = [gpu for gpu in found if gpu.compute_capability >= LEAST_COMPUTE_CAPABILITY]
    if not able:
        newest = max(found, key=lambda gpu: gpu.compute_capability)
        told = f"`{newest.name}` has compute capability {_version(newest.compute_capability)}"
        least = _version(LEAST_COMPUTE_CAPABILITY)
        return _none(f"{told}, but models need {least} or more", driver)
    chosen = [gpu for gpu in visible_gpus(found) if gpu in able]
    if not chosen:
        told = f"`CUDA_VISIBLE_DEVICES` is `{_visible_devices()}`"
        return _none(f"{told}, which names no GPU that models can run on", driver)
    return GpusFound(tuple(chosen), driver, "")


def _why_no_cuda(library: Any, driver: str) -> str:
    cuda_library()  # load it first, because NVML only finds it on the library search path
    version = ctypes.c_int()
    if library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version)):
        return (
            f"the NVIDIA driver {driver} has no `libcuda.so.1`; in a container, set "
            "`NVIDIA_DRIVER_CAPABILITIES=compute,utility`"
        )
    cuda = (version.value // 1000, version.value % 1000 // 10)
    if cuda >= LEAST_CUDA:
        return ""
    return (
        f"the NVIDIA driver {driver} supports CUDA {_version(cuda)}, but models need CUDA "
        f"{_version(LEAST_CUDA)}; install driver {LEAST_DRIVER} or newer"
    )


def _compute_capability(library: Any, card: ctypes.c_void_p) -> tuple[int, int]:
    """Return the compute capability of a card; MIG devices do not report it."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvmlDeviceGetCudaComputeCapability(card, ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _mode(function: Any, device: ctypes.c_void_p, *more: object) -> int:
    """Return the mode that a function of the library writes, or 0 if it fails."""
    mode = ctypes.c_uint()
    return 0 if function(device, ctypes.byref(mode), *more) else mode.value


def _parts(library: Any, card: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
    """Yield the MIG devices of a card."""
    most = ctypes.c_uint()
    library.nvmlDeviceGetMaxMigDeviceCount(card, ctypes.byref(most))
    get = library.nvmlDeviceGetMigDeviceHandleByIndex
    for number in range(most.value):
        part = ctypes.c_void_p()
        if not get(card, ctypes.c_uint(number), ctypes.byref(part)):
            yield part


def _none(reason: str, driver: str = "") -> GpusFound:
    return GpusFound((), driver, reason)


def _no_answer(told: str) -> GpusFound:
    return GpusFound((), "", f"{told}; check that `nvidia-smi` works", answers=False)


def _decoded(answer: bytes) -> GpusFound:
    found = json.loads(answer)
    gpus = [
        Gpu(**{**gpu, "compute_capability": tuple(gpu["compute_capability"])})
        for gpu in found["gpus"]
    ]
    return GpusFound(tuple(gpus), found["driver"], found["reason"])


def _version(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))


if __name__ == "__main__":
    if sys.argv[1:] == ["--json"]:  # the child of `find_gpus`
        sys.stdout.write(json.dumps(asdict(_ask())))
        sys.exit()
    # `make run` calls this before any package is installed.
    sys.exit(not find_gpus().gpus)
