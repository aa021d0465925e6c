"""A sweep measures every setting, and chooses the fastest that answers soon."""

from itertools import count
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from backends.executors.dummy import DummyExecutor
from backends.model_tools.tuning.runs import make_batches, pooled
from backends.model_tools.tuning.speed import Sweep
from backends.model_tools.tuning.sweep import (
    Point,
    choose,
    default_texts,
    sweep_batches,
    sweep_clients,
    thread_counts,
)
from backends.model_tools.tuning.sweep_report import describe_sweep, draw_sweep
from backends.types import IntArray


def point(size: int, rate: float, **changes: int) -> Point:
    return Point(batch_size=size, rows_per_second=rate, p95=0.01, **({"threads": 1} | changes))


def rows(*lengths: int) -> list[IntArray]:
    return [np.arange(1, length + 1, dtype=np.int32) for length in lengths]


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

    together = pooled(executor, make_batches(given, size=2))
    apart = [pooled(executor, make_batches([row]))[0] for row in given]

    assert np.array_equal(together, np.stack(apart))


def test_every_size_is_run_in_every_number_of_threads() -> None:
    executor = DummyExecutor()

    points = sweep_batches(executor, rows(4, 5, 6), sizes=(1, 2), threads=(1, 2), seconds=0.01)

    assert [(p.threads, p.batch_size) for p in points] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all(p.rows_per_second > 0 and p.p95 > 0 for p in points)
    assert {shape[0] for shape in executor.shapes} == {1, 2}


@pytest.mark.anyio
async def test_clients_ask_one_text_after_the_other() -> None:
    ticks = count()
    asked: list[tuple[str, int]] = []

    async def ask(text: str, client: int) -> object:
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


def test_a_sweep_is_told_and_drawn() -> None:
    sweep = Sweep(
        encoder="tiny",
        shares_batches=False,
        batches=[point(1, 300), point(8, 600), point(1, 500, threads=2), point(8, 900, threads=2)],
        clients=[point(8, 200, clients=1), point(8, 800, clients=8)],
        best=point(8, 900, threads=2),
    )

    lines = describe_sweep(sweep)
    page = ET.fromstring(draw_sweep(sweep))  # noqa: S314 - drawn by ourselves

    assert "best: 8 rows a batch, 2 threads" in lines
    assert any("run alone" in line for line in lines)
    words = [element.text for element in page.iter("{http://www.w3.org/2000/svg}text")]
    assert {"1 threads", "2 threads", "clients", "rows of a batch"} <= set(words)
