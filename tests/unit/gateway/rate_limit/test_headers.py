"""The fields that tell a caller how its limits stand."""

from math import inf

import pytest

from sluicegate.gateway.rate_limit.base import Decision, PolicyState
from sluicegate.gateway.rate_limit.headers import go_duration, rate_limit_headers
from sluicegate.gateway.types import Rule

MINUTE = Rule(name="minute", unit="requests", capacity=60, window=60.0)
DAY = Rule(name="day", unit="requests", capacity=1_000, window=86_400.0)
ITEMS = Rule(name="items", unit="items", capacity=6_000, window=60.0)


def state(rule: Rule, remaining: int, reset: float) -> PolicyState:
    return PolicyState(rule=rule, remaining=remaining, reset=reset)


def test_a_refusal_has_every_field_that_clients_read() -> None:
    decision = Decision(
        allowed=False, policies=(state(MINUTE, 0, 6.4),), violated=MINUTE, retry_after=6.4
    )

    assert dict(rate_limit_headers(decision)) == {
        b"ratelimit-policy": b'"minute";q=60;w=60',
        b"ratelimit": b'"minute";r=0;t=7',
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"0",
        b"x-ratelimit-reset-requests": b"6.4s",
        b"retry-after": b"7",
        b"retry-after-ms": b"6400",
    }


def test_an_admission_lists_all_policies_and_the_tightest_of_each_unit() -> None:
    policies = (state(MINUTE, 50, 10.0), state(DAY, 49, 82_176.0), state(ITEMS, 10, 59.9))

    headers = rate_limit_headers(Decision(allowed=True, policies=policies))

    assert headers == [
        (b"ratelimit-policy", b'"minute";q=60;w=60, "day";q=1000;w=86400, "items";q=6000;w=60'),
        (b"ratelimit", b'"minute";r=50;t=10, "day";r=49;t=82176, "items";r=10;t=60'),
        (b"x-ratelimit-limit-requests", b"1000"),
        (b"x-ratelimit-remaining-requests", b"49"),
        (b"x-ratelimit-reset-requests", b"22h49m36s"),
        (b"x-ratelimit-limit-items", b"6000"),
        (b"x-ratelimit-remaining-items", b"10"),
        (b"x-ratelimit-reset-items", b"59.9s"),
    ]


def test_no_policy_means_no_field() -> None:
    assert rate_limit_headers(Decision(allowed=True, policies=())) == []


@pytest.mark.parametrize(
    ("wait", "seconds", "milliseconds"),
    [
        (0.0, b"1", b"1"),
        (0.06, b"1", b"60"),
        (1.0, b"1", b"1000"),
        (1.001, b"2", b"1001"),
        (3_600.0, b"120", b"120000"),
    ],
)
def test_retry_after_is_from_1_to_120_whole_seconds(
    wait: float, seconds: bytes, milliseconds: bytes
) -> None:
    decision = Decision(
        allowed=False, policies=(state(DAY, 0, wait),), violated=DAY, retry_after=wait
    )

    headers = dict(rate_limit_headers(decision))

    assert headers[b"retry-after"] == seconds
    assert headers[b"retry-after-ms"] == milliseconds


@pytest.mark.parametrize(
    ("period", "wait", "is_final"),
    [("day", 80_000.0, False), ("month", 80_000.0, True), ("month", 1.0, False)],
)
def test_only_quotas_of_more_than_a_day_end_all_tries(
    period: str, wait: float, *, is_final: bool
) -> None:
    quota = Rule(name="own", unit="tokens", capacity=9, period=period)
    refused = Decision(
        allowed=False, policies=(state(quota, 0, wait),), violated=quota, retry_after=wait
    )

    headers = dict(rate_limit_headers(refused))

    assert (b"x-should-retry" in headers) == is_final
    assert (b"retry-after" in headers) != is_final


def test_where_waiting_does_not_help_no_time_is_given() -> None:
    decision = Decision(
        allowed=False, policies=(state(MINUTE, 60, 0.0),), violated=MINUTE, retry_after=inf
    )

    headers = dict(rate_limit_headers(decision))

    assert b"retry-after" not in headers
    assert headers[b"x-should-retry"] == b"false"


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.0, b"0s"),
        (0.0001, b"1ms"),
        (0.25, b"250ms"),
        (1.0, b"1s"),
        (6.4, b"6.4s"),
        (6.123, b"6.123s"),
        (60.0, b"1m0s"),
        (360.5, b"6m0.5s"),
        (3_600.0, b"1h0m0s"),
        (90_061.0, b"25h1m1s"),
    ],
)
def test_durations_are_written_as_go_writes_them(seconds: float, written: bytes) -> None:
    assert go_duration(seconds) == written


@pytest.mark.parametrize(("period", "window"), [("day", b"86400"), ("month", b"2592000")])
def test_a_quotas_window_is_the_length_of_its_period(period: str, window: bytes) -> None:
    quota = Rule(name="own", unit="tokens", capacity=9, period=period)

    headers = dict(rate_limit_headers(Decision(allowed=True, policies=(state(quota, 9, 1.0),))))

    assert headers[b"ratelimit-policy"] == b'"own";q=9;w=' + window
