"""Chooses what runs the models of `sluicegate up`: every GPU of the machine, or its CPU."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping

import msgspec

from backends.device_processes import processes_for_a_gpu
from backends.gpus import GPU_PROVIDERS, Gpu, GpusFound, find_gpus
from backends.installing import install_command
from gateway.supervisor.errors import CannotStart

PROVIDER = "SLUICEGATE_BACKEND_PROVIDER"
_GIGABYTE = 1e9


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that run models, and how many backends each has; no GPU: the CPU runs them.

    `notice` is a line for the operator.
    """

    gpus: tuple[Gpu, ...] = ()
    backends_of_each: int = 1
    provider: str = ""
    notice: str = ""


def choose_devices(
    environment: Mapping[str, str],
    *,
    runtimes: Collection[str],
    cores: int,
    find: Callable[[], GpusFound] = find_gpus,
) -> Devices:
    """Return what runs the models: a provider that is set, or else what is installed for it.

    Raises:
        CannotStart: GPUs are to run them, and cannot.
    """
    asked = environment.get(PROVIDER, "")
    if asked and asked not in GPU_PROVIDERS:
        return Devices()
    found = find()
    if not asked and "gpu" not in runtimes:
        return Devices(notice=f"models run on the CPU: {found.reason or _no_runtime(found)}")
    if found.reason:
        raise CannotStart(
            f"models cannot run on a GPU: {found.reason}. To run them on the CPU, set `{PROVIDER}` "
            "to `cpu`"
        )
    if "gpu" not in runtimes:
        raise CannotStart(f"`{PROVIDER}` is `{asked}`, and {_no_runtime(found)}")
    count = 1
    if not any(gpu.is_exclusive for gpu in found.gpus):
        count = processes_for_a_gpu(cores, len(found.gpus))
    each = "a backend" if count == 1 else f"{count} backends"
    return Devices(
        gpus=found.gpus,
        backends_of_each=count,
        provider=asked or "cuda",
        notice=f"models run on {described(found)}, with {each} on each",
    )


def described(found: GpusFound) -> str:
    """Return the GPUs by name and memory, with the driver."""
    kinds = Counter((gpu.name, round(gpu.memory_bytes / _GIGABYTE)) for gpu in found.gpus)
    names = [
        f"{f'{count} x ' if count > 1 else ''}{name} ({size} GB)"
        for (name, size), count in kinds.items()
    ]
    return f"{', '.join(names)}, NVIDIA driver {found.driver}"


def _no_runtime(found: GpusFound) -> str:
    return (
        f"the GPU build of ONNX Runtime is not installed for {described(found)}; in a new "
        f"environment, run {install_command('gpu')}"
    )
