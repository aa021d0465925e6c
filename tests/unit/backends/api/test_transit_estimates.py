"""What a call waited before it was read, by clocks that have nothing in common."""

from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import pytest
from typing_extensions import override

from sluicegate.backends.api.calls import CallAuthenticator, CallHandler
from sluicegate.backends.api.transit_estimates import TransitEstimates
from sluicegate.backends.errors import NotReady
from sluicegate.backends.serving.core import ServingCore
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.wire.protocol import Call, CallItem, Task
from tests.support.clock import Clock

GATEWAY, OTHER = 7, 8
AHEAD = 1_000_000.0
"""How far the clock of the gateway is before that of the backend."""


def test_a_call_waited_for_what_it_took_beyond_the_quickest() -> None:
    estimates = TransitEstimates()

    found = [
        estimates.waited(GATEWAY, AHEAD + sent, received)
        for sent, received in ((10.0, 10.002), (10.1, 10.103), (10.2, 10.6), (10.5, 10.601))
    ]

    assert found == [0.0, 0.0, pytest.approx(0.398), pytest.approx(0.099)]


def test_clocks_of_senders_are_their_own() -> None:
    estimates = TransitEstimates()

    found = [
        estimates.waited(GATEWAY, AHEAD + 10.0, 10.0),
        estimates.waited(OTHER, 3.0, 10.1),
        estimates.waited(OTHER, 3.1, 10.5),
    ]

    assert found == [0.0, 0.0, pytest.approx(0.3)]


def test_nothing_is_estimated_of_a_sender_that_tells_nothing() -> None:
    estimates = TransitEstimates()

    assert [estimates.waited(0, 0.0, received) for received in (10.0, 11.0)] == [0.0, 0.0]


def test_a_clock_that_stood_still_is_forgiven_after_some_seconds() -> None:
    estimates = TransitEstimates()
    before = [estimates.waited(GATEWAY, at, at) for at in (100.0, 101.0, 102.0)]

    found = [estimates.waited(GATEWAY, at - 2.0, at) for at in (105.5, 109.0, 111.0, 116.5)]

    assert before == [0.0] * 3
    assert found == [2.0, 2.0, 0.0, 0.0]


def test_a_sender_is_known_no_more_once_very_many_others_came() -> None:
    estimates = TransitEstimates()
    for sender in range(1, 5002):
        estimates.waited(sender, 10.0, 10.0)

    assert estimates.waited(1, 10.0, 11.0) == 0.0
    assert estimates.waited(5001, 10.0, 11.0) == 1.0


class _Core(ServingCore):
    """Refuses calls, and keeps them."""

    def __init__(self) -> None:
        self.seen: list[Call] = []

    @override
    def admit(self, call: Call, *, has_waited: bool = False) -> NoReturn:
        self.seen.append(call)
        raise NotReady("it never is")


@pytest.mark.parametrize(("delay", "left"), [(0.005, 1.0), (0.3, 0.7), (0.8, 0.5), (30.0, 0.5)])
def test_a_call_that_waited_has_less_time(delay: float, left: float) -> None:
    nobody: Any = SimpleNamespace(send_now=lambda *_: None)
    clock, core = Clock(), _Core()
    handler = CallHandler(
        core=core,
        authenticator=CallAuthenticator((), wants_certificate=False),
        tracing=NO_TRACING,
        clock=clock,
        max_body_bytes=1_000_000,
    )
    for sent in (clock(), clock() - delay):
        call = Call(
            model="mood",
            revision="1",
            profile="",
            task=Task.CLASSIFY,
            parameters=b"",
            items=[CallItem(body=b"", remaining=1.0, scope="")],
            sender=GATEWAY,
            sent=AHEAD + sent,
        )
        handler.begin(msgspec.msgpack.encode(call), nobody)

    assert [call.items[0].remaining for call in core.seen] == [1.0, pytest.approx(left)]
