"""The cost of a batch, fitted to runs."""

import itertools
from pathlib import Path

import pytest

from sluicegate.backends.errors import OutOfMemory
from sluicegate.backends.executors.cost import CostModel, CostSample, fit, measure_cost
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.types import OutputKind
from tests.support.clock import Clock

SOURCE = GraphSource(path=Path(), outputs={OutputKind.POOLED: "pooled"}, dimensions=8)
LADDER = [(4,), (8,), (16,), (32,), (64,), (128,), (256,)]
SHAPES = [(1, 4, 4), (1, 40, 40), (4, 8, 32), (8, 24, 96), (8, 16, 128), (4, 64, 90), (2, 96, 192)]


@pytest.mark.parametrize(
    "true",
    [
        CostModel(base=1e-3, token=0.0, padded=160e-6, square=70e-9),
        CostModel(base=6e-4, token=110e-6, padded=40e-6, square=80e-9),
    ],
)
def test_the_terms_of_a_device_are_found(true: CostModel) -> None:
    trials = [
        CostSample(
            rows=rows,
            longest=longest,
            tokens=tokens,
            seconds=true.seconds(rows=rows, longest=longest, tokens=tokens),
        )
        for rows, longest, tokens in SHAPES
    ]

    found = fit(trials)

    for rows, longest, tokens in SHAPES:
        assert found.seconds(rows=rows, longest=longest, tokens=tokens) == pytest.approx(
            true.seconds(rows=rows, longest=longest, tokens=tokens), rel=1e-6
        )
    assert found.padded == pytest.approx(true.padded, rel=1e-3)


def test_no_term_is_negative() -> None:
    """A device that gets quicker per token with size still costs something for each."""
    trials = [
        CostSample(
            rows=rows, longest=longest, tokens=tokens, seconds=1e-3 * (rows * longest) ** 0.5
        )
        for rows, longest, tokens in SHAPES
    ]

    found = fit(trials)

    assert min(found.base, found.token, found.padded, found.square) >= 0.0


def test_a_run_is_measured_by_its_quickest_trial() -> None:
    clock = Clock()
    source = GraphSource(path=Path(), outputs={OutputKind.POOLED: "pooled"}, dimensions=8)
    runs = 0

    def run(batch: PaddedBatch) -> None:
        nonlocal runs
        runs += 1
        disturbed = 1.0 if runs % 3 == 0 else 0.0
        clock.advance(1e-3 + 1e-4 * batch.ids.size + disturbed)

    found = measure_cost(source, run, clock)

    assert found.seconds(rows=8, longest=16, tokens=128) == pytest.approx(1.38e-2, rel=0.01)


def test_a_shape_without_memory_is_left_out() -> None:
    clock, run = Clock(), []

    def run_batch(batch: PaddedBatch) -> None:
        run.append(batch.ids.shape)
        if batch.ids.size > 1000:
            raise OutOfMemory("too much")
        clock.advance(1e-3 + 1e-4 * batch.ids.size)

    found = measure_cost(SOURCE, run_batch, clock, trials=[*LADDER, (500,) * 3])

    assert found.seconds(rows=8, longest=16, tokens=128) == pytest.approx(1.38e-2, rel=0.01)
    assert run.count((3, 500)) == 1


def test_a_device_with_memory_for_next_to_nothing_gets_the_default() -> None:
    def run_batch(batch: PaddedBatch) -> None:
        if batch.ids.size > LADDER[2][0]:
            raise OutOfMemory("too much")

    assert measure_cost(SOURCE, run_batch, Clock(), trials=LADDER) == CostModel()


def test_measuring_ends_after_its_time() -> None:
    clock, sizes = Clock(), set()

    def run_batch(batch: PaddedBatch) -> None:
        sizes.add(batch.ids.size)
        clock.advance(1.0)

    measure_cost(SOURCE, run_batch, clock, trials=LADDER, seconds=14.0)

    assert sizes == {4, 8, 16, 32, 64}


def test_rows_of_one_length_have_no_padding() -> None:
    cost = CostModel()

    for length, rows in itertools.product(range(1, 65), (2, 3, 7)):
        seconds = cost.seconds(rows=rows, longest=length, tokens=rows * length)
        found = cost.padding(seconds, alone=rows * cost.alone(length))
        assert 0.0 <= found == pytest.approx(0.0, abs=1e-12)
