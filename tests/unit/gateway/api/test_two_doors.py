"""The fast lane and the application answer the same requests with the same bytes."""

import logging
from collections import Counter

import pytest

from tests.support.doors import Door, Traffic

pytestmark = pytest.mark.anyio
_SEED = 20261121


@pytest.fixture
def requests(pytestconfig: pytest.Config) -> int:
    """How many requests are sent: `--door-requests`."""
    asked: int = pytestconfig.getoption("--door-requests")
    return asked


@pytest.mark.timeout(1800)
async def test_both_doors_answer_alike(requests: int) -> None:
    """Status, headers and bodies are equal but for ids and times; so are the events."""
    logging.disable(logging.ERROR)
    application, lane = Door(fast=False), Door(fast=True)
    traffic = Traffic(_SEED)
    statuses: Counter[bytes] = Counter()
    for number in range(requests):
        parts = traffic.next()
        expected, found = await application.send(*parts), await lane.send(*parts)
        assert found == expected, (number, parts)
        assert lane.events() == application.events(), (number, parts)
        statuses.update(line[9:12] for line in expected.split(b"\r\n") if line[:5] == b"HTTP/")
        seconds = traffic.advance()
        for door in (application, lane):
            door.api.clock.advance(seconds)
            door.api.scene.wall.advance(seconds)
    logging.disable(logging.NOTSET)

    wanted = {b"200", b"400", b"401", b"403", b"404", b"405", b"413", b"429", b"504", b"100"}
    assert wanted <= set(statuses), statuses
