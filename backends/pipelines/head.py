"""Applies a trained head to an encoder's vectors."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from sluicegate.backends.arrays import read_arrays
from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.errors import ModelFailed, ModelProblem
from sluicegate.backends.pipelines.encoder import Encoder
from sluicegate.backends.pipelines.scores import gelu, normalize, relu
from sluicegate.backends.pipelines.token_work import run_token_work
from sluicegate.backends.pipelines.windows import Span, Windows
from sluicegate.backends.repository.manifest import HeadManifest
from sluicegate.backends.repository.model import Model
from sluicegate.backends.types import FloatArray, Prompt, RowInput, TokenOffsets

Layer = tuple[FloatArray, FloatArray]
Activation = Literal["relu", "gelu"]
_ACTIVATIONS: dict[Activation, Callable[[FloatArray], FloatArray]] = {"relu": relu, "gelu": gelu}


class HeadWeights:
    """Holds linear layers `x @ w + b`, with the activation between two layers."""

    def __init__(
        self, layers: Sequence[Layer], *, activation: Activation, normalize_input: bool
    ) -> None:
        self._layers = list(layers)
        self._activate = _ACTIVATIONS[activation]
        self._normalize_input = normalize_input

    def apply(self, vectors: FloatArray) -> FloatArray:
        """Return one line of logits for each vector.

        Raises:
            ModelFailed: a logit is NaN or infinite. It would be below every threshold.
        """
        values = normalize(vectors) if self._normalize_input else vectors
        with np.errstate(all="ignore"):
            for weights, bias in self._layers[:-1]:
                values = self._activate(values @ weights + bias)
            weights, bias = self._layers[-1]
            logits: FloatArray = values @ weights + bias
        if not np.isfinite(logits).all():
            raise ModelFailed("the head's output has NaN or infinity")
        return logits


class Head:
    """Runs an encoder, and applies a head to its vectors."""

    def __init__(self, *, encoder: Encoder, weights: HeadWeights) -> None:
        self.encoder = encoder
        self._weights = weights

    async def vectors(
        self, texts: Sequence[RowInput], caller: RowCaller, prompts: Sequence[Prompt] | None = None
    ) -> FloatArray:
        """Return the logits of each text."""
        return self._weights.apply(await self.encoder.vectors(texts, caller, prompts))

    def finish(self, rows: Sequence[FloatArray]) -> FloatArray:
        """Return one line of logits for each pooled row of the encoder."""
        return self._weights.apply(self.encoder.finish(rows))

    async def pairs(
        self, first: str, seconds: Sequence[str], caller: RowCaller, *, cut_first_only: bool
    ) -> FloatArray:
        """Return the logits of each pair: `first` with each of `seconds`."""
        pairs = self.encoder.pairs
        return self._weights.apply(
            await pairs(first, seconds, caller, cut_first_only=cut_first_only)
        )

    async def windows(
        self, text: str, caller: RowCaller, windows: Windows, *, prompt: Prompt | None = None
    ) -> FloatArray:
        """Return the logits of each window of a text."""
        found = await self.encoder.windows(text, caller, windows, prompt=prompt)
        return self._weights.apply(found)

    async def window_places(self, text: str, windows: Windows) -> list[Span]:
        """Return the characters of each window of a text."""
        return await self.encoder.window_places(text, windows)

    async def pair_windows(
        self,
        text: str,
        others: Sequence[str],
        caller: RowCaller,
        windows: Windows,
        *,
        text_first: bool,
    ) -> FloatArray:
        """Return the logits of each pair: a window of the text with one of `others`."""
        pairs = self.encoder.pair_windows
        return self._weights.apply(
            await pairs(text, others, caller, windows, text_first=text_first)
        )

    async def token_vectors(
        self, text: str, caller: RowCaller
    ) -> tuple[list[TokenOffsets], FloatArray]:
        """Return the offsets and the logits of every token of a text."""
        pieces, vectors = await self.encoder.token_vectors(text, caller)
        return pieces, await run_token_work(len(pieces), self._weights.apply, vectors)


def read_head_weights(model: Model, manifest: HeadManifest, *, inputs: int) -> HeadWeights:
    """Read the weights of a head over an encoder whose vectors have `inputs` values.

    Raises:
        ModelProblem: the file is missing, cannot be read, or its shapes do not fit.
    """
    layers = read_head(model.file(manifest.weights), inputs=inputs, outputs=len(manifest.labels))
    return HeadWeights(
        layers, activation=manifest.activation, normalize_input=manifest.normalize_input
    )


def read_head(path: Path, *, inputs: int, outputs: int) -> list[Layer]:
    """Read the layers `w0, b0, w1, b1, ...` of an `.npz` file.

    `inputs` is the size of the encoder's vectors, `outputs` the number of labels.

    Raises:
        ModelProblem: the file is missing, cannot be read, or its shapes do not fit.
    """
    found = read_arrays(path)
    layers: list[Layer] = []
    width = inputs
    for number in range(len(found) // 2):
        weights, bias = found.get(f"w{number}"), found.get(f"b{number}")
        if weights is None or bias is None:
            raise ModelProblem(f"{path}: `w{number}` or `b{number}` is missing")
        if weights.ndim != 2 or weights.shape[0] != width or bias.shape != weights.shape[1:]:  # noqa: PLR2004
            raise ModelProblem(f"{path}: `w{number}` or `b{number}` does not fit {width} inputs")
        if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
            raise ModelProblem(f"{path}: `w{number}` or `b{number}` has a NaN or an infinity")
        layers.append((weights, bias))
        width = weights.shape[1]
    if not layers or len(found) % 2 or width != outputs:
        raise ModelProblem(f"{path}: the head has {width} outputs, but there are {outputs} labels")
    return layers
