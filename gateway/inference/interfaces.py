"""Declares the interfaces of the result cache and the model table that inference depends on."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.cache.entry import CachedResult, CacheHit, Validity
from gateway.cache.key import CacheKey
from gateway.types import ServedModel

LookupCallback = Callable[[list[CacheHit | None]], object]


class ResultStore(Protocol):
    """The result cache as inference reads it: it may forget, it must not lie, it does not raise."""

    def peek(self, key: CacheKey, now: float) -> CachedResult | None:
        """Return what memory holds."""
        ...

    async def lookup(
        self, keys: Sequence[CacheKey], is_valid: Validity | None = None
    ) -> list[CacheHit | None]:
        """Return what any tier holds; what memory has and is not valid is asked of Redis."""
        ...

    def lookup_nowait(
        self, keys: Sequence[CacheKey], on_done: LookupCallback, is_valid: Validity
    ) -> None:
        """Call `on_done` with what `lookup` would return, in a later event-loop iteration."""
        ...

    def store(self, key: CacheKey, entry: CachedResult) -> None:
        """Keep `entry`, best effort, without waiting."""
        ...


class ModelTable(Protocol):
    """Which models are served, as the backends say."""

    def model(self, name: str) -> ServedModel | None:
        """Return the model of that name."""
        ...

    def knows_models(self) -> bool:
        """Tell whether any backend has ever said what it serves."""
        ...
