"""Chooses the devices that run the models of `sluicegate up`: all GPUs, or else the CPU."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping

import msgspec

from gateway.supervisor.device_processes import processes_for_a_gpu
from gateway.supervisor.errors import CannotStart
from wire.gpus import GPU_PROVIDERS, Gpu, GpusFound, find_gpus
from wire.installing import install_command

PROVIDER = "SLUICEGATE_BACKEND_PROVIDER"
_GIGABYTE = 1e9


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the GPUs that run models, and the number of backends on each GPU.

    If there are no GPUs, the CPU runs the models. `notice` is a line to print for the operator.
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
    """Return the devices that run the models.

    The variable `SLUICEGATE_BACKEND_PROVIDER` in `environment` chooses between GPUs and the CPU. If
    it is not set, the models run on GPUs if `runtimes` contains `gpu`, and otherwise on the CPU.

    Raises:
        CannotStart: the models must run on GPUs, but the GPUs cannot be used.
    """
    asked = environment.get(PROVIDER, "")
    if asked and asked not in GPU_PROVIDERS:
        return Devices()
    found = find()
    if not asked and "gpu" not in runtimes:
        return Devices(notice=f"models run on the CPU: {found.reason or _no_runtime(found)}")
    if found.reason:
        raise CannotStart(
            f"models cannot run on a GPU: {found.reason}. Set `{PROVIDER}` to `cpu` to run them on "
            "the CPU"
        )
    if "gpu" not in runtimes:
        raise CannotStart(f"`{PROVIDER}` is `{asked}`, but {_no_runtime(found)}")
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
    """Return a description of the GPUs with their names, memory and driver."""
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
