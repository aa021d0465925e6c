"""The slowest and oldest readers are closed first; who reads at a decent rate goes on."""

from typing import Any

from sluicegate.wire.http.slow_readers import (
    LEAST_RATE,
    WINDOW,
    ReadingPeer,
    ReadProgress,
    Reason,
    choose_to_close,
)

_MIB = 1024 * 1024
_TWO_MEGABITS = 250_000


def reader(rate: float, **fields: Any) -> ReadingPeer:
    known = {"unsent_bytes": _MIB, "since": 0.0, "seconds": WINDOW, "recent_rate": rate}
    return ReadingPeer(rate=rate, **(known | fields))


def observed(rate: float, *, seconds: int, unsent_bytes: int = 17 * _MIB) -> ReadingPeer:
    """Return what is known of a peer that was looked at once a second."""
    progress = ReadProgress(0.0, 0)
    found = progress.observe(0.0, 0, unsent_bytes)
    for second in range(1, seconds + 1):
        found = progress.observe(second, round(rate * second), unsent_bytes)
    return found


def test_a_peer_below_the_least_rate_is_closed_after_the_window_and_not_before() -> None:
    early, late = observed(10.0, seconds=29), observed(10.0, seconds=31)

    assert choose_to_close([early]) == {}
    assert choose_to_close([late]) == {0: Reason.SLOW}


def test_a_slow_line_that_is_used_goes_on_whoever_waits() -> None:
    healthy = observed(_TWO_MEGABITS, seconds=60)

    assert choose_to_close([healthy], wanted_bytes=100 * _MIB) == {}


def test_a_byte_now_and_then_is_no_reading() -> None:
    assert choose_to_close([observed(1.0, seconds=31)]) == {0: Reason.SLOW}


def test_what_the_buffers_took_at_first_is_forgotten_after_a_window() -> None:
    progress = ReadProgress(0.0, 0)
    looks = [progress.observe(second, 4 * _MIB, _MIB) for second in range(1, 70)]

    assert choose_to_close(looks[:30]) == {}
    assert choose_to_close(looks[-1:]) == {0: Reason.SLOW}


def test_beyond_the_bound_the_slowest_then_the_oldest_are_closed() -> None:
    fast, old, young = reader(9e6), reader(2e5, since=1.0), reader(2e5, since=2.0)
    slow = reader(1e5, since=3.0)

    chosen = choose_to_close([fast, young, old, slow], excess_bytes=2 * _MIB)

    assert chosen == {3: Reason.FULL, 2: Reason.FULL}


def test_a_peer_that_nobody_has_watched_yet_is_closed_last() -> None:
    new, known = reader(0.0, seconds=1.0), reader(1e6)

    assert choose_to_close([new, known], excess_bytes=1) == {1: Reason.FULL}
    assert choose_to_close([new, known], excess_bytes=2 * _MIB).keys() == {0, 1}


def test_of_new_peers_the_oldest_is_closed_whatever_the_buffers_took() -> None:
    newest, oldest = reader(0.0, seconds=0.0, since=9.0), reader(9e6, seconds=1.0, since=8.0)

    assert choose_to_close([newest, oldest], excess_bytes=1) == {1: Reason.FULL}


def test_slow_peers_of_the_largest_holder_make_room_for_those_who_wait() -> None:
    rate = 2 * LEAST_RATE
    theirs, mine = reader(rate, holder="a"), reader(rate, holder="b")

    chosen = choose_to_close([mine, theirs, theirs], wanted_bytes=1, largest_holder="a")

    assert chosen == {1: Reason.WANTED}


def test_who_holds_nothing_makes_no_room() -> None:
    slow = reader(2 * LEAST_RATE)

    assert choose_to_close([slow], wanted_bytes=1, largest_holder=None) == {}
