"""Keeps a graph beside its model as ONNX Runtime packs its weights for this machine.

Sessions over such files map the same pages: a further session costs no second copy of the weights,
nor does a second process. Made at the first start, in `.prepacked` beside the graph; what this
kind of machine packed there of other graphs or with other versions is deleted then.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_FOLDER = ".prepacked"
_GRAPH, _WEIGHTS = "model.onnx", "weights.bin"
_LOCK = "lock"
_LOCK_TIMEOUT, _PAUSE = 60.0, 0.02
# Smaller tensors stay in the graph; those that are packed are all larger.
_LEAST_BYTES = "1024"
# The alignment for the widest loads of a processor; the attribute of a packed weight's offset.
_ALIGNMENT = 64
_PACKED = re.compile(rb"\+\d+\|(\d+);\d+;\d")

# Session options that make it write its graph.
SAVING = {
    "session.optimized_model_external_initializers_file_name": _WEIGHTS,
    "session.optimized_model_external_initializers_min_size_in_bytes": _LEAST_BYTES,
    "session.save_external_prepacked_constant_initializers": "1",
}


def prepacked_graph(
    graph: Path, *, digest: str, runtime: str, save: Callable[[Path], None]
) -> Path | None:
    """Return the packed form of `graph`; `save` writes it to a path where it is not there yet.

    `None` when it cannot be kept: the folder is read-only, the disk is full, or a weight would lie
    where the processor cannot load it from.
    """
    machine = _short(_processor())
    folder = graph.parent / _FOLDER / f"{machine}-{_short(f'{digest} {runtime}')}"
    if (folder / _GRAPH).is_file():
        return _aligned(folder / _GRAPH)
    try:
        folder.parent.mkdir(exist_ok=True)
        with _exclusive(folder.parent):
            if not (folder / _GRAPH).is_file():
                _build(folder, save)
                _delete_stale(folder, machine)
    except OSError:
        return None
    return _aligned(folder / _GRAPH) if (folder / _GRAPH).is_file() else None


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: of processes that start together, one packs and the others wait.

    After a timeout they go on without it: two that pack at once write the same files.
    """
    with (folder / _LOCK).open("w") as lock:
        for _ in range(int(_LOCK_TIMEOUT / _PAUSE)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_PAUSE)
        yield


def _build(folder: Path, save: Callable[[Path], None]) -> None:
    building = folder.with_name(f"building-{os.getpid()}-{folder.name}")
    try:
        building.mkdir()
        save(building / _GRAPH)
        # Another process may have been quicker; its files are the same.
        with contextlib.suppress(OSError):
            building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _delete_stale(folder: Path, machine: str) -> None:
    """Delete what `folder` replaces; processes that run it keep its pages until they end."""
    for other in folder.parent.iterdir():
        # Another machine may share the folder and cleans up its own files.
        if other != folder and other.name.startswith(f"{machine}-"):
            shutil.rmtree(other, ignore_errors=True)


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _aligned(graph: Path) -> Path | None:
    """Return the graph unless a packed weight is not aligned.

    ONNX Runtime 1.31 writes weights one behind the other, whatever their size, and maps the file:
    its kernels end the process when they load a packed weight from an odd place.
    """
    places = _PACKED.finditer(graph.read_bytes())
    return graph if all(int(place[1]) % _ALIGNMENT == 0 for place in places) else None


def _processor() -> str:
    """Name what the packing depends on: the instructions this processor has."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return f"{platform.machine()} {platform.processor()}"
