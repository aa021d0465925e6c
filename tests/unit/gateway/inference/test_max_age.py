"""A caller says by `max-age` how old an answer may be."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from typing_extensions import override

from sluicegate.gateway.cache.base import LookupCallback, NullTier
from sluicegate.gateway.cache.entry import CachedResult
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.types import CacheDirectives, Source
from tests.support.inference_scene import Scene, sources

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("max_age", "source"),
    [(10.0, Source.HIT), (9.0, Source.COMPUTED), (0.0, Source.COMPUTED)],
)
async def test_max_age_refuses_what_is_older(
    anyio_backend: str, max_age: float, source: Source
) -> None:
    scene = Scene()
    await scene.ask("a")
    scene.wall.advance(10.0)

    answer = await scene.ask("a", directives=CacheDirectives(max_age=max_age))

    assert sources(answer) == [source]


async def test_max_age_does_not_lengthen_the_life_of_an_answer(anyio_backend: str) -> None:
    scene = Scene()
    await scene.ask("a")
    scene.configure(cache_ttl=60.0)
    scene.wall.advance(61.0)

    answer = await scene.ask("a", directives=CacheDirectives(max_age=86_400.0))

    assert sources(answer) == [Source.COMPUTED]


class StoredTier(NullTier):
    """A remote tier that finds what was stored."""

    def __init__(self) -> None:
        self.entries: dict[CacheKey, CachedResult] = {}

    @override
    def store_all(self, entries: Sequence[tuple[CacheKey, CachedResult]], now: float) -> None:
        self.entries.update(entries)

    @override
    def fetch_nowait(
        self, keys: Sequence[CacheKey], on_done: LookupCallback, *, claims: bool = False
    ) -> None:
        found = [self.entries.get(key) for key in keys]
        asyncio.get_running_loop().call_soon(on_done, found)


@pytest.mark.parametrize("is_stale", [False, True])
async def test_an_entry_too_old_for_max_age_hides_no_fresher_one_in_redis(
    anyio_backend: str, *, is_stale: bool
) -> None:
    remote = StoredTier()
    scene = Scene(tiers=True, remote=remote)
    scene.configure(cache_ttl=5.0 if is_stale else 100.0, stale_while_revalidate=100.0)
    directives = CacheDirectives(max_age=15.0, max_stale=100.0 if is_stale else None)
    await scene.ask("a")
    scene.wall.advance(20.0)
    # Another worker has computed it since.
    for key, entry in remote.entries.items():
        remote.entries[key] = msgspec.structs.replace(entry, stored_at=scene.wall() - 10.0)

    answer = await scene.ask("a", directives=directives)

    assert sources(answer) == [Source.HIT]
    assert answer.outcomes[0].age == 10.0
