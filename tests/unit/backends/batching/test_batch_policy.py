"""The choice of rows that run together."""

from collections.abc import Mapping

from hypothesis import given, strategies as st

from sluicegate.backends.batching.policy import BatchLimits, Choice, Release, choose_batch
from sluicegate.backends.executors.cost import CostModel

LIMITS = BatchLimits(rows=8, tokens=4096)
COST = CostModel(base=1e-3, padded=0.2e-3, square=0.0)


def choose(
    anchor: int,
    waiting: Mapping[int, int],
    limits: BatchLimits = LIMITS,
    *,
    time_left: float = 30.0,
) -> Choice:
    return choose_batch(anchor, waiting, limits, COST, time_left=time_left)


def test_the_urgent_row_runs_even_when_it_is_over_the_token_budget() -> None:
    choice = choose(500, {500: 1, 4: 3}, BatchLimits(rows=8, tokens=10))

    assert choice.lengths == [(500, 1)]


def test_rows_of_one_length_fill_a_batch() -> None:
    choice = choose(12, {12: 20})

    assert (choice.lengths, choice.release) == ([(12, 8)], Release.FULL)


def test_what_is_alone_leaves_at_once() -> None:
    choice = choose(12, {12: 1})

    assert (choice.lengths, choice.release) == ([(12, 1)], Release.IDLE)


def test_an_outlier_runs_alone() -> None:
    choice = choose(60, {60: 1, 10: 7})

    assert (choice.lengths, choice.release) == ([(60, 1)], Release.OUTLIER)


def test_an_outlier_does_not_join_short_rows() -> None:
    choice = choose(10, {10: 4, 60: 1})

    assert (choice.lengths, choice.release) == ([(10, 4)], Release.LENGTH)


def test_nearer_lengths_come_first_and_shorter_ones_before_longer() -> None:
    choice = choose(10, {10: 3, 9: 1, 11: 1, 12: 1})

    assert [length for length, _ in choice.lengths[:2]] == [10, 9]


def test_the_padded_tokens_stay_within_the_budget() -> None:
    """Of 38 tokens, four rows have 38 without their padding and 40 with it."""
    choice = choose(10, {10: 2, 9: 2}, BatchLimits(rows=8, tokens=38))

    assert choice.lengths == [(10, 2), (9, 1)]


def test_a_batch_ends_before_the_time_of_its_urgent_row() -> None:
    """One row takes 3 ms, two 5 ms, three 7 ms."""
    choice = choose(10, {10: 8}, time_left=6e-3)

    assert (choice.lengths, choice.release) == ([(10, 2)], Release.DEADLINE)
    assert choice.seconds <= 6e-3


def test_rows_of_many_lengths_travel_together_where_padding_is_nearly_free() -> None:
    packed = CostModel(base=1e-3, token=0.1e-3, padded=0.0, square=0.0)
    waiting = {10: 2, 11: 2, 12: 2}

    chosen = choose_batch(12, waiting, LIMITS, packed, time_left=30.0)

    assert sum(rows for _, rows in chosen.lengths) == 6


def test_padding_is_bounded_by_what_it_costs() -> None:
    """Rows of 10 beside one of 16: a third is padding, which costs a fifth of that or all of it."""
    waiting = {16: 1, 10: 7}
    gathered = CostModel(base=1e-3, token=0.12e-3, padded=0.025e-3, square=0.0)

    assert len(choose_batch(16, waiting, LIMITS, gathered, time_left=30.0).lengths) == 2
    assert len(choose_batch(16, waiting, LIMITS, COST, time_left=30.0).lengths) == 1


def test_rows_of_others_hold_up_no_request_that_has_more_to_come() -> None:
    """Two of eight rows are the urgent request's, which brings four more; a row takes 5 ms."""
    dear = CostModel(base=1e-3, token=0.5e-3, padded=0.0, square=0.0)
    alone = dear.alone(10)

    more = choose_batch(10, {10: 8}, LIMITS, dear, time_left=9.0, own={10: 2}, own_work=6 * alone)
    last = choose_batch(10, {10: 8}, LIMITS, dear, time_left=9.0, own={10: 2}, own_work=2 * alone)

    assert more.lengths == [(10, 2)]
    assert last.lengths == [(10, 8)]


def test_rows_of_the_urgent_request_join_only_once() -> None:
    cheap = CostModel(base=10e-3, token=0.01e-3, padded=0.0, square=0.0)

    chosen = choose_batch(10, {10: 6}, LIMITS, cheap, time_left=9.0, own={10: 2}, own_work=0.0)

    assert (chosen.lengths, chosen.release) == ([(10, 6)], Release.IDLE)


def test_rows_of_others_join_a_request_with_more_to_come_where_they_cost_little() -> None:
    cheap = CostModel(base=10e-3, token=0.01e-3, padded=0.0, square=0.0)
    work = 60 * cheap.alone(10)

    chosen = choose_batch(10, {10: 8}, LIMITS, cheap, time_left=9.0, own={10: 2}, own_work=work)

    assert chosen.lengths == [(10, 8)]


@given(
    waiting=st.dictionaries(st.integers(2, 256), st.integers(1, 12), min_size=1, max_size=20),
    pick=st.integers(0, 19),
)
def test_a_batch_is_within_its_bounds_and_made_of_waiting_rows(
    waiting: dict[int, int], pick: int
) -> None:
    anchor = sorted(waiting)[pick % len(waiting)]
    limits = BatchLimits(rows=8, tokens=512)

    chosen = dict(choose(anchor, waiting, limits).lengths)

    assert chosen[anchor] >= 1
    assert all(0 < count <= waiting[length] for length, count in chosen.items())
    assert sum(chosen.values()) <= limits.rows
    assert max(chosen) * sum(chosen.values()) <= max(limits.tokens, anchor)
