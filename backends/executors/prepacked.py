"""Caches graphs whose weights ONNX Runtime has packed for this kind of processor.

Sessions and processes that open a packed graph map the same pages, so they share one copy of the
weights. The first start of a backend writes the packed graph to the folder `.prepacked` beside the
graph, and deletes outdated packed graphs of this kind of processor.
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
# Smaller tensors stay in the graph file; every packed tensor has at least this many bytes.
_LEAST_BYTES = "1024"
# The alignment in bytes that the widest vector loads need, and the pattern of a packed weight's
# offset in the graph file.
_ALIGNMENT = 64
_PACKED = re.compile(rb"\+\d+\|(\d+);\d+;\d")

# Session options that make ONNX Runtime write the packed graph.
SAVING = {
    "session.optimized_model_external_initializers_file_name": _WEIGHTS,
    "session.optimized_model_external_initializers_min_size_in_bytes": _LEAST_BYTES,
    "session.save_external_prepacked_constant_initializers": "1",
}


def prepacked_graph(
    graph: Path, *, digest: str, runtime: str, save: Callable[[Path], None]
) -> Path | None:
    """Return the path of the packed `graph`.

    If the packed graph does not exist yet, `save` writes it to the path that it gets. The result is
    `None` if the packed graph cannot be written, or if a weight in it is misaligned.
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
    """Hold the folder's lock, so that only one of several starting processes packs.

    The other processes wait.

    After a timeout, a process continues without the lock. That is safe, because all processes write
    equal files.
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
        # Another process may have been faster. Its files are equal.
        with contextlib.suppress(OSError):
            building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _delete_stale(folder: Path, machine: str) -> None:
    """Delete the folders that `folder` replaces.

    Processes that still use files of the deleted folders keep the mapped pages.
    """
    for other in folder.parent.iterdir():
        # Another kind of machine may share the folder and deletes its own files.
        if other != folder and other.name.startswith(f"{machine}-"):
            shutil.rmtree(other, ignore_errors=True)


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _aligned(graph: Path) -> Path | None:
    """Return the graph, or `None` if one of its packed weights is misaligned.

    ONNX Runtime 1.31 writes weights without alignment and maps the file. Its kernels crash the
    process when they load a misaligned weight.
    """
    places = _PACKED.finditer(graph.read_bytes())
    return graph if all(int(place[1]) % _ALIGNMENT == 0 for place in places) else None


def _processor() -> str:
    """Return the instruction sets of this processor, because the packing depends on them."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return f"{platform.machine()} {platform.processor()}"
