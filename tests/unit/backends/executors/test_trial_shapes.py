"""Which batches a device is tried with."""

import pytest

from sluicegate.backends.device_defaults import BatchBounds
from sluicegate.backends.executors.trial_shapes import (
    CPU_BATCH,
    device_trials,
    full_batches,
    text_lengths,
)

GPU = BatchBounds(rows=256, tokens=32_768)
BOUNDS = [
    (GPU, 512),
    (GPU, 64),
    (GPU, None),
    (GPU, 8192),
    (GPU, 65_536),
    (BatchBounds(rows=256, tokens=4096), 512),
    (BatchBounds(rows=16, tokens=4096), 512),
    (BatchBounds(rows=1, tokens=64), 16),
    (BatchBounds(rows=300, tokens=100), 8),
]


@pytest.mark.parametrize(("bounds", "max_tokens"), BOUNDS)
def test_trials_reach_the_bounds_and_pass_none(bounds: BatchBounds, max_tokens: int | None) -> None:
    trials = device_trials(bounds, max_tokens)

    longest = max_tokens or 512
    assert max(map(len, trials)) == bounds.rows
    assert max(map(max, trials)) == longest
    assert min(map(min, trials)) >= 1
    for trial in trials:
        # A single row may be longer than a batch; a row has a token at least.
        padded = len(trial) * max(trial)
        assert padded <= max(bounds.tokens, longest if len(trial) == 1 else len(trial))


@pytest.mark.parametrize(("bounds", "max_tokens"), BOUNDS)
def test_the_smallest_trials_come_first(bounds: BatchBounds, max_tokens: int | None) -> None:
    """Where time is short, the largest are left out."""
    sizes = [len(trial) * max(trial) for trial in device_trials(bounds, max_tokens)]

    assert sizes == sorted(sizes)


def test_a_gpu_is_tried_with_batches_that_fill_it() -> None:
    trials = device_trials(GPU, 512)

    assert {len(trial) for trial in trials} == {1, 8, 64, 256}
    assert max(len(trial) * max(trial) for trial in trials) == GPU.tokens
    assert any(len(set(trial)) > 20 for trial in trials)


def test_graphs_are_compared_by_batches_that_fill_a_gpu() -> None:
    short, usual, longest = full_batches(GPU, 512)

    assert (len(short), max(short)) == (256, 32)
    assert (len(usual), max(usual)) == (256, 128)
    assert longest == (512,) * 64


def test_lengths_are_those_of_texts() -> None:
    lengths = text_lengths(256, 128)

    assert lengths == text_lengths(256, 128)
    assert max(lengths) == 128
    assert 30 < sorted(lengths)[128] < 55


def test_a_cpu_is_compared_by_a_batch_as_callers_make_it() -> None:
    assert (len(CPU_BATCH), max(CPU_BATCH), sum(CPU_BATCH)) == (16, 24, 240)
