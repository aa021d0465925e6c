"""Sessions on a CPU share the memory of their batches."""

import gc
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from sluicegate.backends.executors.padded_batch import ones
from sluicegate.backends.model_tools.graphs.shapes import BertShape
from sluicegate.backends.types import OutputKind
from testing.bert import pooled_bert, seeded_weights
from tests.support.graph_runs import open_graph

_MEBIBYTE = 1024**2
_SCORES = 64 * _MEBIBYTE  # of 32 rows of 512 tokens: one float for each two tokens and head


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def write_graph(folder: Path) -> Path:
    shape = BertShape(layers=1, hidden=4, heads=2, intermediate=4, vocab=8, positions=512)
    path = folder / "model.onnx"
    path.write_bytes(pooled_bert(shape, seeded_weights(shape, seed=1)).SerializeToString())
    return path


def test_a_second_session_takes_no_memory_for_its_batches(tmp_path: Path) -> None:
    path = write_graph(tmp_path)
    sessions = [open_graph(path, dimensions=4) for _ in range(4)]
    batch = ones(32, 512, OutputKind.POOLED)
    sessions[0].run(batch)
    before = resident_bytes()

    for session in sessions[1:]:
        session.run(batch)

    assert resident_bytes() - before < _SCORES


def test_a_closed_session_returns_the_memory_of_its_batches(tmp_path: Path) -> None:
    # In a process of its own: sessions that other tests have open would keep the shared memory.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        returned = pool.submit(returned_bytes, write_graph(tmp_path)).result()

    assert returned > _SCORES / 2  # a few pages may be in other use


def returned_bytes(path: Path) -> int:
    """Run a batch in a session, close it, and return by how much the process has shrunk."""
    session = open_graph(path, dimensions=4)
    session.run(ones(32, 512, OutputKind.POOLED))
    before = resident_bytes()
    del session
    gc.collect()
    return before - resident_bytes()
