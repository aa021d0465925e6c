"""The choice of rows that run together."""

from hypothesis import given, strategies as st

from backends.batching.policy import BatchLimits, choose_batch

LIMITS = BatchLimits(rows=8, tokens=4096, overhead_tokens=3)


def test_the_oldest_row_runs_even_when_it_is_over_the_token_budget() -> None:
    limits = BatchLimits(rows=8, tokens=10, overhead_tokens=3)

    assert choose_batch(500, {500: 1, 4: 3}, limits) == [(500, 1)]


def test_rows_of_one_length_fill_a_batch() -> None:
    assert choose_batch(12, {12: 20}, LIMITS) == [(12, 8)]


def test_an_outlier_runs_alone() -> None:
    assert choose_batch(60, {60: 1, 10: 7}, LIMITS) == [(60, 1)]


def test_an_outlier_does_not_join_short_rows() -> None:
    assert choose_batch(10, {10: 4, 60: 1}, LIMITS) == [(10, 4)]


def test_nearer_lengths_come_first_and_shorter_ones_before_longer() -> None:
    chosen = choose_batch(10, {10: 1, 9: 1, 11: 1, 12: 1}, LIMITS)

    assert [length for length, _ in chosen[:2]] == [10, 9]


def test_the_padded_tokens_stay_within_the_budget() -> None:
    limits = BatchLimits(rows=8, tokens=30, overhead_tokens=3)

    assert choose_batch(10, {10: 8}, limits) == [(10, 3)]


@given(
    waiting=st.dictionaries(st.integers(2, 256), st.integers(1, 12), min_size=1, max_size=20),
    pick=st.integers(0, 19),
)
def test_a_batch_is_within_its_bounds_and_made_of_waiting_rows(
    waiting: dict[int, int], pick: int
) -> None:
    anchor = sorted(waiting)[pick % len(waiting)]

    chosen = dict(choose_batch(anchor, waiting, LIMITS))

    assert chosen[anchor] >= 1
    assert all(0 < count <= waiting[length] for length, count in chosen.items())
    assert sum(chosen.values()) <= LIMITS.rows
    assert max(chosen) * sum(chosen.values()) <= max(LIMITS.tokens, anchor)
