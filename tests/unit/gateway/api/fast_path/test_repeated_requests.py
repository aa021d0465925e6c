"""Whole requests that Redis has answered are looked up there again, without being read again."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from sluicegate.gateway.api.fast_path.head_cache import RepeatedRequest
from sluicegate.gateway.config.document import LimitsConfig
from sluicegate.gateway.rate_limit.base import Charge, Decision
from sluicegate.gateway.rate_limit.repeated_charges import RepeatedCharges
from sluicegate.gateway.types import Rule
from tests.support.api import KEY, NARROW_KEY
from tests.support.entry_points import EntryPoint
from tests.support.limits import LocalRateLimiter

pytestmark = pytest.mark.anyio
_RULE = Rule(name="minute", unit="requests", capacity=200, window=60.0)
_REPEATS = 3
"""After so many equal requests the next is a repeat: one is computed, two are read."""


@pytest.fixture
async def entry_point(anyio_backend: str) -> EntryPoint:
    entry_point = EntryPoint(fast=True)
    entry_point.api.configure(limits=LimitsConfig(tenant=(_RULE,)))
    entry_point.api.scene.cache.has_memory = False
    return entry_point


def ask(extra: str = "", *, text: str = "popular", key: str = KEY) -> bytes:
    body = msgspec.json.encode({"model": "sentiment", "input": text})
    head = f"POST /v1/classify HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {key}\r\n{extra}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def is_repeat(entry_point: EntryPoint, request: bytes) -> bool:
    found = entry_point.api.fast_path.heads.find_replayable(request)
    return isinstance(found, RepeatedRequest)


async def repeat(entry_point: EntryPoint, request: bytes) -> bytes:
    """Send a request until equal ones are repeats; return the last answer."""
    answers = [await entry_point.send(request) for _ in range(_REPEATS)]
    assert is_repeat(entry_point, request)
    return answers[-1]


async def test_a_repeat_is_answered_charged_and_recorded_as_the_hit_before(
    entry_point: EntryPoint,
) -> None:
    before = await repeat(entry_point, ask())
    (*_, event) = entry_point.events()

    answer = await entry_point.send(ask())

    assert b"cache-status: sluicegate; hit; detail=redis\r\n" in answer
    assert b"x-ratelimit-remaining-requests: 196\r\n" in answer
    assert answer.split(b"\r\n\r\n")[1] == before.split(b"\r\n\r\n")[1]
    assert entry_point.events() == [event]


async def test_only_equal_bytes_of_plain_requests_are_repeats(entry_point: EntryPoint) -> None:
    for extra in ("x-server-timing: 1\r\n", "cache-control: max-age=9\r\n"):
        for _ in range(_REPEATS):
            await entry_point.send(ask(extra))

        assert not is_repeat(entry_point, ask(extra))

    await repeat(entry_point, ask())
    assert not is_repeat(entry_point, ask(text="other"))
    assert not is_repeat(entry_point, ask(key=NARROW_KEY))


async def test_a_repeat_whose_entry_is_gone_is_computed(entry_point: EntryPoint) -> None:
    await repeat(entry_point, ask())
    entry_point.api.scene.cache.entries.clear()
    computed = entry_point.api.scene.runner.begun

    answer = await entry_point.send(ask())

    assert b"cache-status: sluicegate; fwd=uri-miss" in answer
    assert entry_point.api.scene.runner.begun == computed + 1


async def test_a_repeat_has_the_entry_that_is_stored_now(entry_point: EntryPoint) -> None:
    await repeat(entry_point, ask())
    ((key, entry),) = entry_point.api.scene.cache.entries.items()
    entry_point.api.scene.cache.entries[key] = msgspec.structs.replace(entry, payload=b'"newer"')

    assert b'"newer"' in await entry_point.send(ask())


async def test_repeats_are_forgotten_with_the_document(entry_point: EntryPoint) -> None:
    await repeat(entry_point, ask())

    entry_point.api.configure(limits=LimitsConfig(tenant=()))

    assert not is_repeat(entry_point, ask())
    assert b"x-ratelimit" not in await entry_point.send(ask())


async def test_repeats_end_with_their_key(entry_point: EntryPoint) -> None:
    await repeat(entry_point, ask())

    entry_point.api.keys.replace({})

    assert b"HTTP/1.1 401 " in await entry_point.send(ask())


async def test_a_repeat_is_answered_by_the_revision_that_is_served_now(
    entry_point: EntryPoint,
) -> None:
    await repeat(entry_point, ask())
    info = entry_point.api.scene.models.infos["sentiment"]
    newer = msgspec.structs.replace(info, revision="bbbbbbbbbbbb")
    entry_point.api.scene.models.infos["sentiment"] = newer

    computed, hit = [await entry_point.send(ask()) for _ in range(2)]

    assert b"cache-status: sluicegate; fwd=uri-miss" in computed
    assert b"cache-status: sluicegate; hit; detail=redis\r\n" in hit
    assert b'"revision":"bbbbbbbbbbbb"' in hit


async def test_phases_of_one_repeat_stand_for_those_of_others(entry_point: EntryPoint) -> None:
    await repeat(entry_point, ask())
    metrics, registry = entry_point.api.metrics, entry_point.api.registry
    metrics.flush()
    name = "sluicegate_phase_duration_seconds_count"
    before = registry.get_sample_value(name, {"phase": "cache"}) or 0

    for _ in range(63):
        await entry_point.send(ask())
    metrics.flush()
    assert registry.get_sample_value(name, {"phase": "cache"}) == before
    await entry_point.send(ask())
    metrics.flush()

    assert registry.get_sample_value(name, {"phase": "cache"}) == before + 64


class AskedLimiter(LocalRateLimiter):
    """Decides nothing at once."""

    @override
    def try_admit(self, charges: Sequence[Charge]) -> Any:
        return None

    @override
    async def admit(self, charges: Sequence[Charge]) -> Decision:
        return super().try_admit(charges)


async def test_a_repeat_whose_limits_are_waited_for_has_phases_of_its_own(
    entry_point: EntryPoint,
) -> None:
    await repeat(entry_point, ask())
    metrics, registry, processor = (
        entry_point.api.metrics,
        entry_point.api.registry,
        entry_point.api.processor,
    )
    limiter = AskedLimiter(monotonic=entry_point.api.clock)
    processor._limiter = limiter
    processor._repeated = RepeatedCharges(limiter.repeated_charge)
    name = "sluicegate_phase_duration_seconds_count"

    def counts() -> list[float]:
        metrics.flush()
        phases = ("admission", "cache")
        return [registry.get_sample_value(name, {"phase": phase}) or 0 for phase in phases]

    before = counts()
    answer = await entry_point.send(ask())

    assert b"cache-status: sluicegate; hit; detail=redis\r\n" in answer
    assert counts() == [count + 1 for count in before]


async def test_an_answer_of_memory_takes_the_place_of_repeats(entry_point: EntryPoint) -> None:
    await repeat(entry_point, ask())
    entry_point.api.scene.cache.has_memory = True

    answers = [await entry_point.send(ask()) for _ in range(2)]

    assert all(b"detail=memory\r\n" in answer for answer in answers)


async def test_a_request_behind_a_repeat_is_answered_after_it(entry_point: EntryPoint) -> None:
    entry_point.api.scene.runner.result = lambda body: msgspec.json.encode(repr(body))
    await repeat(entry_point, ask())
    await entry_point.send(ask(text="other"))

    entry_point.protocol.data_received(ask())
    entry_point.protocol.data_received(ask(text="other"))
    await entry_point.rest()

    written = bytes(entry_point.transport.written)
    assert written.count(b"HTTP/1.1 200 OK") == 2
    assert 0 < written.index(b"popular") < written.index(b"other")
