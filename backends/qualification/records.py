"""Stores measurements of a model on this machine, so that a restart need not repeat them.

The files are in the model's folder. They are hidden, because hidden files are not part of the
model's digest.
"""

import hashlib
import importlib.metadata
import platform
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from sluicegate.backends.repository.publishing import replace_file
from sluicegate.wire.cores import usable_cores

_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "openvino")
_CPU_INFO = Path("/proc/cpuinfo")
_GPUS = Path("/proc/driver/nvidia/gpus")
_CPU_FIELDS = ("model name", "flags", "Features", "CPU part")
T = TypeVar("T", bound=msgspec.Struct)


class MachineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Holds where and when something was measured: devices, runtime versions, and the date."""

    devices: list[str] = []
    runtimes: list[str] = []
    date: str = ""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    machine: MachineInfo = MachineInfo()
    measured: msgspec.Raw


def machine_key(*parts: str) -> str:
    """Return a digest of the kind of machine, its devices, the runtimes' versions and `parts`."""
    text = "\n".join([platform.machine(), _cpu(), *_gpus(), *_runtimes(), *parts])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def describe_machine() -> MachineInfo:
    """Return the names of this machine's devices and runtimes, and today's date."""
    lines = [line for line in _cpu().splitlines() if line.startswith("model name")]
    cpu = lines[0].partition(":")[2].strip() if lines else platform.machine()
    return MachineInfo(
        devices=[f"{cpu}, {usable_cores()} cores", *_gpus()],
        runtimes=_runtimes(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
    )


def read_machine(path: Path) -> MachineInfo | None:
    """Return the machine on which a record was measured; `None` if there is no valid record."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Record).machine
    except (OSError, msgspec.DecodeError):
        return None


def read_record(path: Path, key: str, kind: type[T]) -> T | None:
    """Return the measurement that was recorded under `key`, or `None`."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=_Record)
        return msgspec.json.decode(record.measured, type=kind) if record.key == key else None
    except (OSError, msgspec.DecodeError):
        return None


def write_record(path: Path, key: str, measured: msgspec.Struct) -> bool:
    """Record a measurement; return `False` if the folder cannot be written."""
    raw = msgspec.Raw(msgspec.json.encode(measured))
    record = _Record(key=key, machine=describe_machine(), measured=raw)
    return replace_file(path, msgspec.json.encode(record))


def _runtimes() -> list[str]:
    found = []
    for name in _RUNTIMES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _gpus() -> list[str]:
    try:
        texts = [path.read_text(encoding="utf-8") for path in sorted(_GPUS.glob("*/information"))]
    except (OSError, UnicodeDecodeError):
        return []
    lines = [line for text in texts for line in text.splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


def _cpu() -> str:
    """Return the model and the instruction sets of the CPU, which decide which kernels run."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").split("\n\n", 1)[0].splitlines()
    except (OSError, UnicodeDecodeError):
        return platform.processor()
    return "\n".join(line for line in lines if line.split("\t")[0].strip() in _CPU_FIELDS)
