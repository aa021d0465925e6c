"""Caches graphs whose weights ONNX Runtime has packed for this kind of processor.

Sessions and processes that open a packed graph map the same pages, so they share one copy of the
weights. Models of a repository share the copies of their equal weights. The first start of a
backend writes the packed graph to the folder `.prepacked` beside the graph, and deletes outdated
packed graphs of this kind of processor.
"""

import contextlib
import fcntl
import hashlib
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sluicegate.backends.executors.shared_weights import share_weights

_FOLDER = ".prepacked"
_GRAPH, _WEIGHTS = "model.onnx", "weights.bin"
_LOCK = "lock"
_LOCK_TIMEOUT, _PAUSE = 60.0, 0.02
# Smaller tensors stay in the graph file.
_LEAST_BYTES = "16384"
# Raised when the files of a packed graph change their layout.
_LAYOUT = 2

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
    `None` if the packed graph cannot be written.
    """
    machine = _short(_processor())
    folder = graph.parent / _FOLDER / f"{machine}-{_short(f'{digest} {runtime} {_LAYOUT}')}"
    if (folder / _GRAPH).is_file():
        return folder / _GRAPH
    with contextlib.suppress(OSError):
        folder.parent.mkdir(exist_ok=True)
        with _exclusive(folder.parent):
            if not (folder / _GRAPH).is_file():
                _build(folder, save, others=_packed_files(graph))
                _delete_stale(folder, machine)
    return folder / _GRAPH if (folder / _GRAPH).is_file() else None


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


def _packed_files(graph: Path) -> Iterator[Path]:
    """Yield the files of all packed graphs in the repository.

    The graph is in the folder of a revision, of a model, of the repository. During an import, it is
    in the same folders of a hidden folder in the repository.
    """
    for folder in graph.absolute().parents[2:4]:
        yield from folder.glob(f"*/*/{_FOLDER}/*/*")
        if not folder.name.startswith("."):
            return


def _build(folder: Path, save: Callable[[Path], None], *, others: Iterable[Path]) -> None:
    # Processes in other containers may have the same id.
    building = folder.with_name(f"building-{secrets.token_hex(8)}-{folder.name}")
    try:
        building.mkdir()
        save(building / _GRAPH)
        # ONNX Runtime writes no second file if all weights are small.
        if (building / _WEIGHTS).is_file():
            share_weights(building / _GRAPH, building / _WEIGHTS, others)
        # Another process may have been faster. Its files are equal.
        with contextlib.suppress(OSError):
            building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _delete_stale(folder: Path, machine: str) -> None:
    """Delete the folders that `folder` replaces, and what killed processes left of it.

    Processes that still use files of the deleted folders keep the mapped pages.
    """
    for other in folder.parent.glob(f"building-*-{folder.name}"):
        shutil.rmtree(other, ignore_errors=True)
    for other in folder.parent.iterdir():
        # Another kind of machine may share the folder and deletes its own files.
        if other != folder and other.name.startswith(f"{machine}-"):
            shutil.rmtree(other, ignore_errors=True)


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _processor() -> str:
    """Return the instruction sets of this processor, because the packing depends on them."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return f"{platform.machine()} {platform.processor()}"
