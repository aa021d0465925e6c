"""Tokenizes and detokenizes with a model's tokenizer."""

from collections.abc import Sequence
from typing import Any

import msgspec
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithm
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.wire.protocol import DetokenizeParameters, Task, TokenizeParameters


class Tokenize(Algorithm):
    """Returns the tokens of a text, their count, and whether the model reads them in one row."""

    def __init__(self, *, encoder: str) -> None:
        self._encoder = encoder

    @override
    async def run(self, item: str, parameters: TokenizeParameters, ask: AlgorithmContext) -> Any:
        reader = ask.token_reader(self._encoder)
        with_special = parameters.add_special_tokens
        special = reader.special_tokens if with_special else 0
        if parameters.counts_only:
            count, shown = special + await reader.count(item), b"{}"
        else:
            count, shown = await reader.show(item, add_special_tokens=with_special)
        windows = await reader.windows(count - special, parameters.overlap)
        counts = msgspec.json.encode({"count": count, "fits": windows <= 1, "windows": windows})
        rest = b"" if shown == b"{}" else b"," + shown[1:-1]
        return msgspec.Raw(counts[:-1] + rest + b"}")


class Detokenize(Algorithm):
    """Returns the text of tokens."""

    def __init__(self, *, encoder: str) -> None:
        self._encoder = encoder

    @override
    async def run(
        self, item: Sequence[int], parameters: DetokenizeParameters, ask: AlgorithmContext
    ) -> Any:
        reader = ask.token_reader(self._encoder)
        skip = parameters.skip_special_tokens
        return {"text": await reader.decode(item, skip_special_tokens=skip)}


def token_algorithms(encoder: str) -> dict[Task, Algorithm]:
    """Return the algorithms of the tokenizer tasks for an encoder."""
    return {
        Task.TOKENIZE: Tokenize(encoder=encoder),
        Task.DETOKENIZE: Detokenize(encoder=encoder),
    }
