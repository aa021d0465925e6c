"""Batches run in few shapes, none much larger than what they hold."""

from hypothesis import given, strategies as st

from sluicegate.backends.executors.buckets import Buckets, Shape, round_up

SIZES = st.integers(1, 5000)


@given(SIZES, st.sampled_from([1, 8, 16, 32]), st.integers(1, 8))
def test_a_bucket_holds_its_size_and_little_more(size: int, multiple: int, steps: int) -> None:
    """Beside the multiple, nothing grows by more than one step of its doubling."""
    bucket = round_up(size, multiple=multiple, steps=steps)

    assert size <= bucket
    assert bucket % multiple == 0
    assert bucket - size < size / steps + multiple


@given(SIZES, st.sampled_from([1, 8]), st.integers(1, 8))
def test_a_bucket_is_its_own(size: int, multiple: int, steps: int) -> None:
    """Rounding up twice changes nothing, so that equal shapes meet."""
    bucket = round_up(size, multiple=multiple, steps=steps)

    assert round_up(bucket, multiple=multiple, steps=steps) == bucket


@given(SIZES, SIZES)
def test_a_larger_size_has_no_smaller_bucket(first: int, second: int) -> None:
    small, large = sorted((first, second))

    assert round_up(small, multiple=8, steps=4) <= round_up(large, multiple=8, steps=4)


def test_one_step_a_doubling_is_powers_of_two() -> None:
    buckets = {round_up(size, multiple=1, steps=1) for size in range(1, 300)}

    assert sorted(buckets) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def test_four_steps_make_few_shapes_of_many() -> None:
    """All lengths to 512 are 20 buckets."""
    lengths = {Buckets().fit(1, length).length for length in range(1, 513)}

    assert len(lengths) == 20
    assert {8, 64, 80, 128, 160, 512} <= lengths


def test_a_length_is_not_rounded_beyond_what_the_model_has_positions_for() -> None:
    buckets = Buckets(max_length=250)

    assert buckets.fit(3, 249) == Shape(3, 250)
    assert buckets.fit(3, 17) == Shape(3, 24)


def test_shapes_within_bounds_come_largest_first() -> None:
    """What is captured first claims the memory that the others fit in."""
    shapes = Buckets().shapes(max_rows=4, max_length=32, max_tokens=64)

    assert shapes[0].tokens == 64
    assert [s.tokens for s in shapes] == sorted((s.tokens for s in shapes), reverse=True)
    assert Shape(4, 32) not in shapes
    assert set(shapes) == {Buckets().fit(*shape) for shape in shapes}
    assert Buckets().shapes(max_rows=0, max_length=32, max_tokens=64) == []
