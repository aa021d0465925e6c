"""Measures how long questions to a tokenizer take, with the wait for its threads."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from typing_extensions import override

from backends.durations import DurationCounts
from backends.errors import BackendError
from backends.telemetry.catalogue import SECONDS
from backends.tokenization.tokenizer import TextKind, Texts, Tokenizer
from backends.types import Encoding


class TimedTokenizer(Tokenizer):
    """A tokenizer that counts its durations. Asked, and read, in the event loop's thread."""

    def __init__(self, *args: Any, **options: Any) -> None:  # those of its base
        super().__init__(*args, **options)
        self.durations = DurationCounts(SECONDS)

    @override
    def encode_short(self, groups: Sequence[Texts]) -> list[list[Encoding] | BackendError]:
        began = perf_counter()
        answers = super().encode_short(groups)
        self.durations.add(perf_counter() - began)
        return answers

    @override
    async def ask_each(self, groups: Sequence[Texts], kind: TextKind) -> list[Any]:
        began = perf_counter()
        try:
            return await super().ask_each(groups, kind)
        finally:
            self.durations.add(perf_counter() - began)
