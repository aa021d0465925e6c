"""A sweep measures every setting, and chooses the fastest that answers soon."""

import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from sluicegate.backends.errors import OutOfMemory, StartProblem
from sluicegate.backends.model_tools.tuning.reports import describe_sweep, plot_sweep
from sluicegate.backends.model_tools.tuning.speed import Sweep
from sluicegate.backends.model_tools.tuning.sweep import (
    Point,
    batch_sizes,
    choose,
    sweep_batches,
    sweep_clients,
    thread_counts,
)
from sluicegate.backends.qualification.golden_texts import default_texts
from sluicegate.backends.qualification.records import MachineInfo
from sluicegate.backends.qualification.text_runs import make_batches, run_texts
from sluicegate.backends.types import Encoding, OutputKind, Text
from tests.support.executors import DummyExecutor, PacedExecutor


def point(size: int, rate: float, **changes: int) -> Point:
    return Point(batch_size=size, rows_per_second=rate, p95=0.01, **({"threads": 1} | changes))


def rows(*lengths: int) -> list[Encoding]:
    ids = [np.arange(1, length + 1, dtype=np.int32) for length in lengths]
    return [Encoding(ids=row, type_ids=None, key=row.tobytes()) for row in ids]


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_threads_double_up_to_the_most(most: int, counts: list[int]) -> None:
    assert thread_counts(most) == counts


def test_the_fastest_setting_is_chosen() -> None:
    assert choose([point(1, 300), point(8, 600), point(32, 500)]).batch_size == 8


def test_a_smaller_batch_that_is_nearly_as_fast_is_chosen() -> None:
    assert choose([point(1, 300), point(8, 990), point(16, 1000)]).batch_size == 8


def test_batches_hold_rows_of_like_length() -> None:
    batches = make_batches(rows(9, 2, 8, 3, 1), size=2)

    assert [batch.places for batch in batches] == [[4, 1], [3, 2], [0]]
    assert [batch.padded.ids.shape for batch in batches] == [(2, 2), (2, 8), (1, 9)]


def test_vectors_come_back_in_the_order_of_the_texts() -> None:
    given = rows(9, 2, 8, 3, 1)
    executor = DummyExecutor(worker_threads=2)

    together, owners = run_texts(executor, make_batches(given, size=2))
    apart = [run_texts(executor, make_batches([row]))[0][0] for row in given]

    assert np.array_equal(together, np.stack(apart))
    assert owners.tolist() == [0, 1, 2, 3, 4]


def test_every_size_is_run_in_every_number_of_threads() -> None:
    executor = DummyExecutor()

    points = sweep_batches(
        executor,
        rows(4, 5, 6),
        output=OutputKind.POOLED,
        sizes=(1, 2),
        threads=(1, 2),
        seconds=0.01,
    )

    assert [(p.threads, p.batch_size) for p in points] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all(p.rows_per_second > 0 and p.p95 > 0 for p in points)
    assert {shape[0] for shape in executor.shapes} == {1, 2}


def test_a_gpu_is_given_as_many_rows_as_a_backend_batches() -> None:
    given = rows(*[16] * 5)

    assert batch_sizes("CPUExecutionProvider", given, max_tokens=4096)[-1] == 32
    assert batch_sizes("CUDAExecutionProvider", given, max_tokens=4096)[-1] == 256
    assert batch_sizes("CUDAExecutionProvider", rows(8000), max_tokens=4096) == [1]


def test_sizes_that_the_device_has_no_memory_for_are_left_out() -> None:
    def refuse(rows: int, _: int) -> None:
        if rows > 2:
            raise OutOfMemory("there was no memory for the batch")

    points = sweep_batches(
        PacedExecutor(refuse),
        rows(*[4] * 8),
        output=OutputKind.POOLED,
        sizes=(1, 2, 4, 8),
        threads=(1,),
        seconds=0.01,
    )

    assert [point.batch_size for point in points] == [1, 2]


@pytest.mark.anyio
async def test_clients_ask_one_text_after_the_other() -> None:
    ticks = count()
    asked: list[tuple[Text, int]] = []

    async def ask(text: Text, client: int) -> object:
        asked.append((text, client))
        return None

    points = await sweep_clients(
        ask,
        ["a", "b"],
        clients=(1, 3),
        best=point(8, 1.0),
        seconds=20.0,
        clock=lambda: float(next(ticks)),
    )

    assert [p.clients for p in points] == [1, 3]
    assert {client for _, client in asked} == {0, 1, 2}
    assert all(p.p95 == 1.0 for p in points)


def test_texts_have_the_lengths_of_sentences() -> None:
    lengths = [len(text.split()) for text in default_texts()]

    assert 6 <= np.median(lengths) <= 12
    assert min(lengths) >= 1
    assert default_texts() == default_texts()


SWEEP = Sweep(
    model="tiny",
    folder=Path("models/tiny/2"),
    digest="",
    provider="CPUExecutionProvider",
    machine=MachineInfo(devices=["A CPU, 2 cores"], runtimes=["onnxruntime 1"], date="2026-11-22"),
    shares_batches=False,
    batches=[point(1, 300), point(8, 600), point(1, 500, threads=2), point(8, 900, threads=2)],
    clients=[point(8, 200, clients=1), point(8, 800, clients=8)],
    best=point(8, 900, threads=2),
)


def test_a_sweep_is_told() -> None:
    lines = describe_sweep(SWEEP)

    assert lines[0] == "tiny, revision 2"
    assert "best: 8 rows a batch, 2 threads" in lines
    assert any("run alone" in line for line in lines)


def test_a_plot_names_the_model_the_machine_and_the_chosen_point(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `tools` is not installed")

    assert plot_sweep(SWEEP, tmp_path / "plot.svg", print)

    page = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    # Matplotlib draws letters as outlines, and says in a comment what they spell.
    for words in (
        "tiny, revision 2: 8 rows a batch in 2 threads",
        "A CPU, 2 cores",
        "chosen",
        "clients",
    ):
        assert words in page
    with pytest.raises(StartProblem, match="cannot write"):
        plot_sweep(SWEEP, tmp_path / "plot.doc", print)


def test_without_matplotlib_there_is_no_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    assert not plot_sweep(SWEEP, tmp_path / "plot.svg", print)
    assert list(tmp_path.iterdir()) == []
