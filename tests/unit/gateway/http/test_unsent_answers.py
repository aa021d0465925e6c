"""Answers that are not sent yet have a bound, which slow readers keep by being closed."""

import asyncio

import pytest

from sluicegate.gateway.errors import Overloaded
from sluicegate.gateway.http.unsent_answers import LIMIT_BYTES, UnsentAnswers, unsent_limit
from sluicegate.wire.http.slow_readers import ReadingPeer, ReadProgress
from tests.support.clock import Clock

pytestmark = pytest.mark.anyio
_KB = 1024


class Peer:
    """A connection whose peer has read `read` bytes of an answer."""

    def __init__(self, size: int, answers: UnsentAnswers | None = None, key: str = "") -> None:
        self.size, self.read, self.is_closed = size, 0, False
        self._answers, self._key = answers, key
        self._progress: ReadProgress | None = None

    def reader(self, now: float) -> ReadingPeer | None:
        """Return what is unread, until it is closed."""
        if self.is_closed or not self.size:
            return None
        self._progress = self._progress or ReadProgress(now, self.read)
        return self._progress.observe(now, self.read, self.size, self._key or None)

    def own_unsent_bytes(self) -> int:
        """Return what the budget does not count."""
        return 0 if self._key else self.size

    def give_up(self) -> None:
        """Release what is held, as the end of a request does."""
        self.is_closed = True
        if self._answers is not None:
            self._answers.release(self._key, self.size)


def answers_of(peers: list[Peer], clock: Clock, limit: int = 100 * _KB) -> UnsentAnswers:
    answers = UnsentAnswers(limit, clock=clock)
    answers.watch(peers, lambda _: None)
    return answers


async def test_writes_beyond_the_bound_close_connections_at_once() -> None:
    peers: list[Peer] = []
    answers = answers_of(peers, Clock())

    for _ in range(30):
        peers.append(Peer(10 * _KB))
        answers.wrote(10 * _KB)

    unsent = sum(peer.size for peer in peers if not peer.is_closed)
    assert 50 * _KB < unsent <= 100 * _KB


async def test_small_answers_count_too() -> None:
    peers = [Peer(_KB) for _ in range(300)]
    answers = answers_of(peers, Clock())

    answers.check(0.0)

    unsent = sum(peer.size for peer in peers if not peer.is_closed)
    assert unsent <= 100 * _KB
    assert answers.statistics().unsent_bytes == unsent


async def test_what_is_within_the_bound_closes_nobody() -> None:
    peers = [Peer(_KB) for _ in range(95)]
    answers = answers_of(peers, Clock())

    answers.check(0.0)

    assert not any(peer.is_closed for peer in peers)


async def test_a_peer_without_unread_bytes_is_left_alone() -> None:
    idle, full = Peer(0), Peer(200 * _KB)
    answers = answers_of([idle, full], Clock())

    answers.check(0.0)

    assert (idle.is_closed, full.is_closed) == (False, True)


async def test_who_waits_gets_the_room_of_a_peer_that_does_not_read() -> None:
    clock, peers = Clock(), list[Peer]()
    answers = answers_of(peers, clock)
    peers.append(Peer(await answers.hold("a", 60 * _KB, clock() + 60.0), answers, "a"))
    waiting = asyncio.create_task(answers.hold("b", 60 * _KB, clock() + 60.0))
    await asyncio.sleep(0)

    for second in range(4):
        answers.check(float(second))
    early = peers[0].is_closed
    answers.check(6.0)

    assert await waiting == 60 * _KB
    assert (early, peers[0].is_closed) == (False, True)


async def test_the_key_that_holds_the_most_makes_room_for_who_waits() -> None:
    clock, peers = Clock(), list[Peer]()
    answers = answers_of(peers, clock)
    for key, size in (("a", 50 * _KB), ("z", 10 * _KB)):
        peers.append(Peer(await answers.hold(key, size, clock() + 60.0), answers, key))
    waiting = asyncio.create_task(answers.hold("b", 40 * _KB, clock() + 60.0))
    await asyncio.sleep(0)

    for second in (0.0, 6.0):
        answers.check(second)

    assert await waiting == 40 * _KB
    assert [peer.is_closed for peer in peers] == [True, False]


async def test_a_peer_that_reads_keeps_its_room_and_others_are_told_to_come_back() -> None:
    clock, peers = Clock(), list[Peer]()
    answers = answers_of(peers, clock)
    peers.append(Peer(await answers.hold("a", 60 * _KB, clock() + 60.0), answers, "a"))
    waiting = asyncio.create_task(answers.hold("b", 60 * _KB, clock()))
    await asyncio.sleep(0)

    for second in range(40):
        peers[0].read += 250_000
        answers.check(float(second))

    with pytest.raises(Overloaded):
        await waiting
    assert not peers[0].is_closed


@pytest.mark.parametrize("has_left", [False, True])
async def test_who_waits_no_longer_closes_nobody(*, has_left: bool) -> None:
    clock, peers = Clock(), list[Peer]()
    answers = answers_of(peers, clock)
    peers.append(Peer(await answers.hold("a", 60 * _KB, clock() + 60.0), answers, "a"))
    waiting = asyncio.create_task(answers.hold("b", 60 * _KB, clock() + 60.0 * has_left))
    await asyncio.sleep(0)

    if has_left:
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError if has_left else Overloaded):
        await waiting
    for second in range(10):
        answers.check(float(second))

    assert not peers[0].is_closed


async def test_an_answer_larger_than_all_room_waits_for_all_of_it() -> None:
    answers = answers_of([], Clock())

    held = await answers.hold("a", 1000 * _KB, 1.0)

    assert 80 * _KB < held <= 100 * _KB


def test_the_bound_is_a_part_of_the_memory_of_the_process() -> None:
    assert unsent_limit(400 * _KB) == 100 * _KB
    assert unsent_limit(0) == LIMIT_BYTES
