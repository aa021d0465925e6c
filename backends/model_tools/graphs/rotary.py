"""Computes rotary positions: the angles by which queries and keys are turned.

Each pair of a head's numbers turns by the position times a frequency (Su et al. 2021,
arXiv:2104.09864). A model that was made to read longer texts than it was first trained on scales
the frequencies. The kinds of scaling have the names and formulas of `transformers` (Apache-2.0),
`modeling_rope_utils.py`.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.model_tools.graphs.weights import WeightsError


class Rotary(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the rotary positions of heads that are `width` wide, for up to `positions` tokens.

    `scaling` has the fields of `rope_parameters` or `rope_scaling` in `config.json`.
    """

    theta: float
    width: int
    positions: int
    scaling: Mapping[str, Any] = MappingProxyType({})

    @property
    def kind(self) -> str:
        """The kind of scaling, such as `linear`; `default` if there is none."""
        return str(self.scaling.get("rope_type", self.scaling.get("type", "default")))

    def frequencies(self) -> NDArray[np.float32]:
        """Return the angle by which each pair turns from one position to the next.

        Raises:
            WeightsError: the kind of scaling is not supported, or lacks a field.
        """
        scale = _SCALINGS.get(self.kind)
        if scale is None:
            known = ", ".join(f"`{name}`" for name in _SCALINGS)
            raise WeightsError(f"`rope_type` is `{self.kind}`; supported are {known}")
        exponents = np.arange(0, self.width, 2, dtype=np.float32) / np.float32(self.width)
        plain = np.float32(1) / np.float32(self.theta) ** exponents
        try:
            return scale(self, plain).astype(np.float32)
        except KeyError as error:
            raise WeightsError(f"`rope_type` is `{self.kind}`, which needs {error}") from None

    @property
    def factor(self) -> float:
        """The factor by which the scaling stretches queries and keys."""
        if self.kind != "yarn":
            return 1.0
        given = self.scaling.get("attention_factor")
        if given is not None:
            return float(given)
        parts = [self.scaling.get(name) for name in ("mscale", "mscale_all_dim")]
        if all(parts):
            above, below = (self._stretch(float(part or 0)) for part in parts)
            return above / below
        return self._stretch(1.0)

    def tables(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the cosines and the sines of all positions, without `factor`."""
        places = np.arange(self.positions, dtype=np.float32)
        angles = places[:, None] * self.frequencies()[None, :]
        return np.cos(angles), np.sin(angles)

    def _stretch(self, share: float) -> float:
        scale = float(self.scaling["factor"])
        return 1.0 if scale <= 1 else 0.1 * share * math.log(scale) + 1.0


_Frequencies = NDArray[np.float32]


def _unscaled(_: Rotary, plain: _Frequencies) -> _Frequencies:
    return plain


def _linear(rotary: Rotary, plain: _Frequencies) -> _Frequencies:
    return plain / np.float32(rotary.scaling["factor"])


def _llama3(rotary: Rotary, plain: _Frequencies) -> _Frequencies:
    """Slow down the pairs that turn less than once in the texts of the first training."""
    given = rotary.scaling
    slow, fast = float(given["low_freq_factor"]), float(given["high_freq_factor"])
    turns = float(given["original_max_position_embeddings"]) * plain / np.float32(2 * math.pi)
    share = np.clip((turns - slow) / (fast - slow), 0, 1)
    scaled: _Frequencies = (1 - share) * plain / float(given["factor"]) + share * plain
    return scaled


def _yarn(rotary: Rotary, plain: _Frequencies) -> _Frequencies:
    """Slow down as `_llama3` does, with a ramp over the number of the pair (arXiv:2309.00071)."""
    given, width = rotary.scaling, rotary.width
    trained = float(given.get("original_max_position_embeddings") or rotary.positions)

    def pair_of(turns: float) -> float:
        logarithm = math.log(trained / (turns * 2 * math.pi))
        return width * logarithm / (2 * math.log(rotary.theta))

    low, high = pair_of(given.get("beta_fast") or 32), pair_of(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    pairs = np.arange(width // 2, dtype=np.float32)
    share = 1 - np.clip((pairs - low) / ((high - low) or 0.001), 0, 1)
    scaled: _Frequencies = plain / float(given["factor"]) * (1 - share) + plain * share
    return scaled


# `dynamic` scaling begins after `max_position_embeddings`, which is the longest text served.
_SCALINGS: Mapping[str, Callable[[Rotary, _Frequencies], _Frequencies]] = MappingProxyType(
    {
        "default": _unscaled,
        "linear": _linear,
        "dynamic": _unscaled,
        "llama3": _llama3,
        "yarn": _yarn,
    }
)
