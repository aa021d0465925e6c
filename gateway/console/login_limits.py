"""Limits how often an IP address may try to log in with a wrong key."""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from sluicegate.gateway.errors import RateLimited

MOST_FAILURES = 10
WINDOW = 60.0
"""An IP address may send `MOST_FAILURES` wrong keys in this many seconds."""
_MOST_ADDRESSES = 4096


class _Bucket(msgspec.Struct):
    """A token bucket: how many wrong keys an IP address could send at the time `at`."""

    tokens: float
    at: float


class LoginLimiter:
    """Keeps a token bucket for each IP address that sent a wrong key.

    If there are too many addresses, the limiter forgets the address whose last wrong key is the
    oldest.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise `RateLimited` if the IP address has sent too many wrong keys."""
        bucket = self._refilled(address)
        if bucket.tokens < 1:
            wait = (1 - bucket.tokens) * WINDOW / MOST_FAILURES
            raise RateLimited("Too many wrong keys. Try again in a moment.", retry_after=wait)

    def fail(self, address: str) -> None:
        """Count a wrong key from the IP address."""
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
