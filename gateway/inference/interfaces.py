"""Declares the interfaces of the result cache and the model table that inference depends on."""

from collections.abc import Callable, Sequence
from typing import Protocol

from sluicegate.gateway.cache.entry import CachedResult, CacheHit, Validity
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.types import ServedModel

LookupCallback = Callable[[list[CacheHit | None]], object]


class ResultStore(Protocol):
    """Answers by key. Nothing raises: a cache that is down is a miss, a store that fails is lost.

    An entry is returned only to the very key it was stored under, and never after `expires_at`.
    """

    def has(self, address: bytes) -> bool:
        """Tell whether this worker's memory has something at a key's address."""
        ...

    def peek(self, key: CacheKey, now: float) -> CachedResult | None:
        """Return the entry if this worker's memory has it; `now` is the wall clock's."""
        ...

    def entry_of(self, key: CacheKey) -> CachedResult | None:
        """Return what `peek` would, or what has expired, without counting a read."""
        ...

    def lookup_nowait(
        self,
        keys: Sequence[CacheKey],
        on_done: LookupCallback,
        is_valid: Validity | None = None,
        *,
        claims: bool = False,
    ) -> object:
        """Call `on_done` with what memory, then Redis, have of `keys` that is valid.

        That is once, in a later event-loop iteration. Entries in memory that are not valid are
        looked up in Redis, too. With `claims`, it may claim what it does not find: see
        `SharedCache.has_claimed`.
        """
        ...

    def release_unused(self, keys: Sequence[CacheKey]) -> None:
        """End claims that look-ups made on `keys`, and that nobody has taken."""
        ...

    def store_all(self, entries: Sequence[tuple[CacheKey, CachedResult]]) -> None:
        """Keep each entry under its key: in memory now, in Redis soon."""
        ...


class SharedCache(Protocol):
    """The result cache's claims, by which workers learn what others compute."""

    async def lookup(
        self, keys: Sequence[CacheKey], is_valid: Validity | None = None
    ) -> list[CacheHit | None]:
        """Return what `ResultStore.lookup_nowait` finds. May be cancelled."""
        ...

    def has_claimed(self, keys: Sequence[CacheKey]) -> bool:
        """Tell, once, whether look-ups have claimed all of `keys` lately: `claim` need not."""
        ...

    async def claim(self, keys: Sequence[CacheKey], is_valid: Validity | None = None) -> list[bool]:
        """Claim `keys`; return `True` for each that another worker computes or has just answered.

        A stored answer that is not valid is replaced by the claim.
        """
        ...

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Extend the claims of this worker on `keys`."""
        ...

    def release(self, keys: Sequence[CacheKey]) -> None:
        """End the claims of this worker on `keys`, which are not answered."""
        ...


class ModelTable(Protocol):
    """The models that are served, as the backends report them."""

    def model(self, name: str) -> ServedModel | None:
        """Return the model of that name."""
        ...

    def models(self) -> Sequence[ServedModel]:
        """Return all models."""
        ...

    def models_version(self) -> int:
        """Return a number that changes whenever the served models may have changed."""
        ...

    def knows_models(self) -> bool:
        """Tell whether a backend has named a model, or all have said that they serve none."""
        ...
