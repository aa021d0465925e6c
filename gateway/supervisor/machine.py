"""Determines what this machine offers `sluicegate up`: devices that run models, and memory."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from sluicegate.gateway.supervisor.errors import CannotStart
from sluicegate.wire.cgroups import cgroup_folders
from sluicegate.wire.gpus import GPU_PROVIDERS, Gpu, GpusFound, find_gpus
from sluicegate.wire.installing import install_command

PROVIDER = "SLUICEGATE_BACKEND_PROVIDER"
_GIGABYTE = 1e9
_KIBIBYTE = 1024
_LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}
# Decision 0037 has the measurements. Backends take five of eight cores; the gateway and Valkey take
# the other three. Six backends answer 50,000 rows a second, which is enough for the largest cards.
_BACKEND_SHARE = 5 / 8
_MOST = 6


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


def processes_for_a_gpu(cores: int, gpus: int) -> int:
    """Return how many backends to run on each GPU of a machine with `cores` cores.

    One Python process cannot feed a large GPU. The number is bounded, because each backend has its
    own copy of the weights and a CUDA context.
    """
    if gpus < 1:
        return 1
    return max(1, min(_MOST, int(cores * _BACKEND_SHARE) // gpus))


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


def available_memory(root: Path = Path("/")) -> int:
    """Return how many bytes of memory may be used, or 0 if that is unknown.

    The result is the machine's memory or the lowest memory limit of the cgroups, whichever is less.
    """
    return min((found for found in _limits(root) if found > 0), default=0)


def _limits(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                yield int(line.split()[1]) * _KIBIBYTE
    for version, folder in cgroup_folders("memory", root):
        with suppress(OSError, ValueError):  # the root has no such file; "max" is not a number
            yield int((folder / _LIMIT_FILES[version]).read_text())
