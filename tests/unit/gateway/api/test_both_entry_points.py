"""The fast path and the core answer the same requests with the same bytes."""

import logging
import re
from collections import Counter

import msgspec
import pytest

from sluicegate.gateway.config.document import ModelConfig
from sluicegate.gateway.types import ItemFailure
from tests.support.entry_points import EntryPoint, Traffic
from tests.support.inference_scene import INFO

pytestmark = pytest.mark.anyio
_SEED = 20261121
_REVISIONS = [msgspec.structs.replace(INFO, revision=letter * 12) for letter in "abc"]
_AWAY = ItemFailure(status=503, code="upstream_unavailable", detail="Away.", retryable=True)
_TIERS = re.compile(rb"hit; detail=([a-z]+)")
_KINDS = re.compile(rb"detail=(stale[a-z-]*)")


@pytest.fixture
def requests(pytestconfig: pytest.Config) -> int:
    """How many requests are sent: `--entry-point-requests`."""
    asked: int = pytestconfig.getoption("--entry-point-requests")
    return asked


async def test_both_entry_points_answer_alike_from_before(anyio_backend: str) -> None:
    """Revisions come and go, backends are away for a while: old answers are the same as well."""
    entry_points = application, fast_path = EntryPoint(fast=False), EntryPoint(fast=True)
    entry = ModelConfig(stale_while_revalidate=5.0, stale_if_error=60.0)
    for entry_point in entry_points:
        entry_point.api.configure(models={"sentiment": entry})
    traffic = Traffic(_SEED)
    kinds: Counter[bytes] = Counter()
    for number in range(800):
        if number % 50 == 0:
            for entry_point in entry_points:
                entry_point.api.scene.models.infos["sentiment"] = _REVISIONS[number // 50 % 3]
                entry_point.api.scene.runner.failure = _AWAY if number // 50 % 2 else None
        parts = traffic.next()
        expected, found = await application.send(*parts), await fast_path.send(*parts)
        assert found == expected, (number, parts)
        assert fast_path.events() == application.events(), (number, parts)
        kinds.update(_KINDS.findall(expected))
        for entry_point in entry_points:
            entry_point.api.clock.advance(1.0)
            entry_point.api.scene.wall.advance(1.0)

    assert set(kinds) == {b"stale", b"stale-if-error"}
    assert min(kinds.values()) > 5


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tier", ["memory", "redis"])
async def test_both_entry_points_answer_alike(requests: int, tier: str) -> None:
    """Status, headers and bodies are equal but for ids and times; so are the events."""
    logging.disable(logging.ERROR)
    application, fast_path = EntryPoint(fast=False), EntryPoint(fast=True)
    for entry_point in (application, fast_path):
        entry_point.api.scene.cache.has_memory = tier == "memory"
    traffic = Traffic(_SEED)
    statuses: Counter[bytes] = Counter()
    tiers: Counter[bytes] = Counter()
    for number in range(requests):
        parts = traffic.next()
        expected, found = await application.send(*parts), await fast_path.send(*parts)
        assert found == expected, (number, parts)
        assert fast_path.events() == application.events(), (number, parts)
        statuses.update(line[9:12] for line in expected.split(b"\r\n") if line[:5] == b"HTTP/")
        tiers.update(_TIERS.findall(expected))
        seconds = traffic.advance()
        for entry_point in (application, fast_path):
            entry_point.api.clock.advance(seconds)
            entry_point.api.scene.wall.advance(seconds)
    logging.disable(logging.NOTSET)

    wanted = {b"200", b"400", b"401", b"403", b"404", b"405", b"413", b"429", b"504", b"100"}
    wanted |= {b"431", b"501", b"505"}
    assert wanted <= set(statuses), statuses
    assert tiers[tier.encode()] > requests / 10, tiers
