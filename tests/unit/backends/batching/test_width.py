"""When a batch runs on all cores."""

from sluicegate.backends.batching.runner import ParallelismChoice
from sluicegate.backends.executors.cost import CostModel

NARROW = CostModel(base=1e-3, padded=0.16e-3)
# Two threads halve the work and take longer to start.
WIDE = CostModel(base=2e-3, padded=0.09e-3)


def choose(width: ParallelismChoice, *, alone: bool, length: int = 64) -> bool:
    return width.choose(alone=alone, lengths=[length])


def test_it_goes_wide_only_after_some_batches_alone() -> None:
    width = ParallelismChoice(narrow=NARROW, wide=WIDE)

    chosen = [choose(width, alone=True) for _ in range(5)]

    assert chosen == [False, False, False, True, True]


def test_company_ends_it_at_once() -> None:
    width = ParallelismChoice(narrow=NARROW, wide=WIDE)
    for _ in range(5):
        choose(width, alone=True)

    assert not choose(width, alone=False)
    assert not choose(width, alone=True)


def test_a_batch_that_would_be_slower_stays_narrow() -> None:
    width = ParallelismChoice(narrow=NARROW, wide=WIDE)
    for _ in range(5):
        choose(width, alone=True)

    assert not choose(width, alone=True, length=8)


def test_without_a_wide_session_everything_is_narrow() -> None:
    width = ParallelismChoice(narrow=NARROW, wide=None)

    assert not any(choose(width, alone=True) for _ in range(5))
