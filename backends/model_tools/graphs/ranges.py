"""Chooses how a product of activations and weights is computed in int8.

Activations become uint8 with one step size for the whole tensor, and weights int8 with one step
size for each column. In a transformer, a few channels of the activations are ten times larger than
the other channels. With one step size, most channels would use only a few of the 256 values.
SmoothQuant therefore divides each channel by a factor, and multiplies the channel's row of the
weights by the same factor. The product stays the same, and part of the rounding error moves to the
weights.

This module tries several factors, and several fractions of extreme values to clip. It chooses the
combination with the least error of the product on samples.
"""

import itertools

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.types import FloatArray

_SHARES = (0.5, 0.65, 0.8, 0.9, 1.0)
_CUTS = (0.0, 1e-5, 1e-4)
_LEVELS = 255
_LARGEST_WEIGHT = 127
_LEAST = np.float32(1e-5)


class Samples(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds sample inputs of a product: some rows, and each channel's extremes over all rows."""

    rows: FloatArray
    low: FloatArray
    high: FloatArray


class ProductPlan(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the constants with which one product is computed in int8.

    `factors` divide the channels of the activations; `None` leaves them unchanged. `correction` is
    the mean error of each column, which is added to the product. `error` is the sum of the squared
    errors, divided by the sum of the squares of the product.
    """

    factors: FloatArray | None
    step: float
    zero: int
    weights: NDArray[np.int8]
    weight_steps: FloatArray
    correction: FloatArray
    error: float


def plan_product(samples: Samples, kernel: FloatArray) -> ProductPlan:
    """Return the plan with the least error for `samples @ kernel`."""
    exact = samples.rows @ kernel
    plans = (
        _plan(samples, kernel, exact, share=share, cut=cut)
        for share, cut in itertools.product((None, *_SHARES), _CUTS)
    )
    return min(plans, key=lambda plan: plan.error)


def quantize_rows(rows: FloatArray, plan: ProductPlan) -> NDArray[np.uint8]:
    """Return activations in uint8, as the graph computes them."""
    given = rows if plan.factors is None else rows * (1 / plan.factors)
    values = np.rint(given / np.float32(plan.step)) + plan.zero
    quantized: NDArray[np.uint8] = np.clip(values, 0, _LEVELS).astype(np.uint8)
    return quantized


def approximate(rows: FloatArray, plan: ProductPlan) -> FloatArray:
    """Return the product as the graph computes it, except that the correction is not added."""
    whole = (quantize_rows(rows, plan).astype(np.float32) - plan.zero) @ plan.weights.astype(
        np.float32
    )
    product: FloatArray = whole * (np.float32(plan.step) * plan.weight_steps)
    return product


def _plan(
    samples: Samples, kernel: FloatArray, exact: FloatArray, *, share: float | None, cut: float
) -> ProductPlan:
    factors = None if share is None else _factors(samples, kernel, share)
    divisor = np.float32(1) if factors is None else factors
    step, zero = _range(samples, divisor, cut)
    weights, weight_steps = _quantize_columns(
        kernel if factors is None else kernel * factors[:, None]
    )
    plan = ProductPlan(
        factors=factors,
        step=step,
        zero=zero,
        weights=weights,
        weight_steps=weight_steps,
        correction=np.zeros(kernel.shape[1], dtype=np.float32),
        error=0.0,
    )
    missing = exact - approximate(samples.rows, plan)
    correction = missing.mean(axis=0)
    energy = float(np.square(exact).sum()) or 1.0
    error = float(np.square(missing - correction).sum()) / energy
    return msgspec.structs.replace(plan, correction=correction, error=error)


def _factors(samples: Samples, kernel: FloatArray, share: float) -> FloatArray:
    """Return the factor of each channel.

    The larger `share` is (from 0 to 1), the more of a channel's size moves to the weights.
    """
    size = np.maximum(np.maximum(-samples.low, samples.high), _LEAST)
    factors = size**share / np.maximum(np.abs(kernel).max(axis=1), _LEAST) ** (1 - share)
    balanced: FloatArray = (factors / np.exp(np.log(factors).mean())).astype(np.float32)
    return balanced


def _range(samples: Samples, divisor: FloatArray | np.float32, cut: float) -> tuple[float, int]:
    """Return the step size and the zero point.

    The range clips the share `cut` of the values at each end.
    """
    if cut:
        low, high = np.quantile(samples.rows / divisor, (cut, 1 - cut))
    else:
        low, high = (samples.low / divisor).min(), (samples.high / divisor).max()
    # Zero must have an exact representation, because padding and clipped activations are zero.
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    step = (high - low) / _LEVELS or 1.0
    return float(np.float32(step)), round(min(max(-low / step, 0), _LEVELS))


def _quantize_columns(kernel: FloatArray) -> tuple[NDArray[np.int8], FloatArray]:
    steps = np.abs(kernel).max(axis=0) / _LARGEST_WEIGHT
    steps = np.where(steps == 0, np.float32(1), steps).astype(np.float32)
    weights = np.clip(np.rint(kernel / steps), -_LARGEST_WEIGHT, _LARGEST_WEIGHT)
    return weights.astype(np.int8), steps
