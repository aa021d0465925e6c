"""Bounds how often an address may try to log in with a wrong key."""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from gateway.errors import RateLimited

MOST_FAILURES = 10
WINDOW = 60.0
"""Seconds in which an address has `MOST_FAILURES` tries."""
_MOST_ADDRESSES = 4096


class _Bucket(msgspec.Struct):
    """Failures that an address may still have, at a time."""

    tokens: float
    at: float


class LoginLimiter:
    """Has a bucket of failures for each address; forgets the address that failed longest ago."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise `RateLimited` where the address failed too often."""
        bucket = self._refilled(address)
        if bucket.tokens < 1:
            wait = (1 - bucket.tokens) * WINDOW / MOST_FAILURES
            raise RateLimited("Too many wrong keys; try again in a moment.", retry_after=wait)

    def fail(self, address: str) -> None:
        """Count a wrong key."""
        bucket = self._refilled(address)
        bucket.tokens -= 1
        self._buckets[address] = bucket
        self._buckets.move_to_end(address)
        if len(self._buckets) > _MOST_ADDRESSES:
            self._buckets.popitem(last=False)

    def _refilled(self, address: str) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.get(address) or _Bucket(tokens=MOST_FAILURES, at=now)
        refill = (now - bucket.at) * MOST_FAILURES / WINDOW
        return _Bucket(tokens=min(MOST_FAILURES, bucket.tokens + refill), at=now)
