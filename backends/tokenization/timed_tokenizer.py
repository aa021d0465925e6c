"""Measures the duration of each call to a tokenizer."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from typing_extensions import override

from sluicegate.backends.errors import BackendError
from sluicegate.backends.tokenization.tokenizer import TextKind, Texts, Tokenizer
from sluicegate.backends.types import Encoding
from sluicegate.wire.durations import SECONDS, DurationCounts


class TimedTokenizer(Tokenizer):
    """Records the duration of each call, including its wait for a thread.

    An object belongs to one event loop.
    """

    def __init__(self, *args: Any, **options: Any) -> None:  # the arguments of `Tokenizer`
        super().__init__(*args, **options)

    @override
    def reset(self) -> None:
        super().reset()
        self.durations = DurationCounts(SECONDS)

    @override
    def encode_short(self, groups: Sequence[Texts]) -> list[list[Encoding] | BackendError]:
        began = perf_counter()
        results = super().encode_short(groups)
        self.durations.add(perf_counter() - began)
        return results

    @override
    async def tokenize_each(self, groups: Sequence[Texts], kind: TextKind) -> list[Any]:
        began = perf_counter()
        try:
            return await super().tokenize_each(groups, kind)
        finally:
            self.durations.add(perf_counter() - began)
