"""Stores measurements of a model on this machine beside the model, so that restarts are fast.

The files are hidden: what is measured here belongs to no model's digest, and so to no revision.
"""

import hashlib
import importlib.metadata
import platform
from pathlib import Path
from typing import TypeVar

import msgspec

from backends.repository.publishing import replace_file

_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "openvino")
_CPU_INFO = Path("/proc/cpuinfo")
_CPU_FIELDS = ("model name", "flags", "Features", "CPU part")
T = TypeVar("T", bound=msgspec.Struct)


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    measured: msgspec.Raw


def machine_key(*parts: str) -> str:
    """Return a key of this kind of machine, the runtime's version and `parts`."""
    versions = [_version(name) for name in _RUNTIMES]
    text = "\n".join([platform.machine(), _cpu(), *versions, *parts])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read_record(path: Path, key: str, kind: type[T]) -> T | None:
    """Return what was measured under `key`, if it was."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=_Record)
        return msgspec.json.decode(record.measured, type=kind) if record.key == key else None
    except (OSError, msgspec.DecodeError):
        return None


def write_record(path: Path, key: str, measured: msgspec.Struct) -> bool:
    """Keep what was measured; `False` where the folder cannot be written."""
    record = _Record(key=key, measured=msgspec.Raw(msgspec.json.encode(measured)))
    return replace_file(path, msgspec.json.encode(record))


def _version(name: str) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    """Return what decides which kernels run: the model and its instruction sets."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").split("\n\n", 1)[0].splitlines()
    except (OSError, UnicodeDecodeError):
        return platform.processor()
    return "\n".join(line for line in lines if line.split("\t")[0].strip() in _CPU_FIELDS)
