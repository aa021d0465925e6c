"""Ranges are chosen so that a few large channels cost the others nothing."""

import numpy as np
import pytest

from sluicegate.backends.model_tools.graphs.ranges import (
    ProductPlan,
    Samples,
    approximate,
    plan_product,
    quantize_rows,
)
from sluicegate.backends.types import FloatArray

RANDOM = np.random.default_rng(4)
KERNEL = RANDOM.standard_normal((64, 48)).astype(np.float32)


def samples(rows: FloatArray) -> Samples:
    return Samples(rows=rows, low=rows.min(axis=0), high=rows.max(axis=0))


def even_rows() -> FloatArray:
    return RANDOM.standard_normal((300, 64)).astype(np.float32)


def rows_with_outliers() -> FloatArray:
    rows = even_rows()
    rows[:, :2] *= 40
    return rows


def lost(rows: FloatArray, plan: ProductPlan) -> float:
    exact = rows @ KERNEL
    found = approximate(rows, plan) + plan.correction
    return float(np.square(exact - found).sum() / np.square(exact).sum())


@pytest.mark.parametrize("make", [even_rows, rows_with_outliers])
def test_a_product_in_eight_bits_loses_less_than_a_thousandth(make: object) -> None:
    rows = make()  # type: ignore[operator]

    plan = plan_product(samples(rows), KERNEL)

    assert plan.error < 1e-3
    assert lost(rows, plan) == pytest.approx(plan.error, rel=0.05)


def test_large_channels_are_shared_with_the_weights() -> None:
    """The same plan without factors would lose far more of the small channels."""
    plan = plan_product(samples(rows_with_outliers()), KERNEL)

    assert plan.factors is not None
    assert plan.factors[:2].min() > 4 * plan.factors[2:].max()


def test_zero_stays_zero() -> None:
    plan = plan_product(samples(even_rows() + 3), KERNEL)
    nothing = np.zeros((1, 64), dtype=np.float32)

    assert (quantize_rows(nothing, plan) == plan.zero).all()
    assert not approximate(nothing, plan).any()


def test_channels_and_columns_without_values_are_harmless() -> None:
    rows, kernel = even_rows(), KERNEL.copy()
    rows[:, 5] = 0
    kernel[:, 7] = 0

    plan = plan_product(samples(rows), kernel)

    assert np.isfinite(approximate(rows, plan)).all()
    assert not approximate(rows, plan)[:, 7].any()


def test_what_lies_outside_the_range_is_cut_off() -> None:
    plan = plan_product(samples(even_rows()), KERNEL)

    assert quantize_rows(np.full((1, 64), 1e6, dtype=np.float32), plan).max() == 255
    assert quantize_rows(np.full((1, 64), -1e6, dtype=np.float32), plan).min() == 0
