"""What callers ask for in headers, and what is refused."""

import math

import pytest

from sluicegate.gateway.api.request_headers import (
    parse_cache_control,
    parse_criticality,
    parse_timeout,
)
from sluicegate.gateway.auth.bearer import bearer_token
from sluicegate.gateway.config.document import DeadlineConfig
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.types import CacheDirectives, Criticality

_DEADLINE = DeadlineConfig(default=10.0, maximum=60.0)


@pytest.mark.parametrize(
    ("value", "key"),
    [(b"Bearer abc", b"abc"), (b"bearer  abc ", b"abc"), (b"Basic abc", b""), (b"", b"")],
)
def test_the_key_is_taken_from_a_bearer_header(value: bytes, key: bytes) -> None:
    assert bearer_token(value) == key


@pytest.mark.parametrize(("value", "seconds"), [(None, 10.0), (b"2.5", 2.5), (b"600", 60.0)])
def test_a_request_gets_the_time_it_asks_for_up_to_the_maximum(
    value: bytes | None, seconds: float
) -> None:
    assert parse_timeout(value, _DEADLINE) == seconds


@pytest.mark.parametrize("value", [b"", b"0", b"-1", b"nan", b"inf", b"soon", b"\xff"])
def test_a_time_that_is_none_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="X-Request-Timeout"):
        parse_timeout(value, _DEADLINE)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Criticality.DEFAULT),
        (b" Sheddable", Criticality.SHEDDABLE),
        (b"critical", Criticality.CRITICAL),
    ],
)
def test_a_request_says_how_important_it_is(value: bytes | None, expected: Criticality) -> None:
    assert parse_criticality(value) is expected


@pytest.mark.parametrize("value", [b"urgent", b""])
def test_an_importance_that_is_none_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Sluicegate-Criticality"):
        parse_criticality(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", CacheDirectives()),
        (b"no-cache, no-store", CacheDirectives(no_cache=True, no_store=True)),
        (b'Max-Age="60"', CacheDirectives(max_age=60.0)),
        (b"max-stale=7", CacheDirectives(max_stale=7.0)),
        (b"max-stale", CacheDirectives(max_stale=math.inf)),
        (b"only-if-cached, stale-if-error=5", CacheDirectives(only_if_cached=True)),
        (b"private;x, , ,", CacheDirectives()),
    ],
)
def test_cache_control_is_read_and_unknown_directives_ignored(
    value: bytes, expected: CacheDirectives
) -> None:
    assert parse_cache_control(value) == expected


@pytest.mark.parametrize("value", [b"max-age", b"max-age=soon", b"max-age=-1", b"max-age=\xb2"])
def test_a_max_age_that_is_no_number_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="max-age"):
        parse_cache_control(value)


@pytest.mark.parametrize("value", [b"max-stale=soon", b"max-stale=-1"])
def test_a_max_stale_that_is_no_number_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="max-stale"):
        parse_cache_control(value)
