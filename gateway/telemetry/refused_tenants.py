"""Counts the requests that limits refused for each tenant.

There are too many tenants for a metric with a label for the tenant.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

_SPAN: Final = 30.0
_MAX_TENANTS: Final = 1000
_MAX_REPORTED: Final = 5


class TenantRefusals(msgspec.Struct, frozen=True, kw_only=True):
    """The rate at which limits refuse a tenant's requests."""

    tenant: str
    per_second: float


class RefusedTenants:
    """Counts each tenant's refusals in the last 30 to 60 seconds, for at most 1,000 tenants."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._last_began = clock()
        self._counts: Counter[str] = Counter()
        self._last: Counter[str] = Counter()

    def add(self, tenant: str) -> None:
        """Count a refused request."""
        if tenant in self._counts or len(self._counts) < _MAX_TENANTS:
            self._counts[tenant] += 1

    def statistics(self) -> list[TenantRefusals]:
        """Return the tenants with the most refused requests, in descending order."""
        now = self._clock()
        while now - self._began >= _SPAN:
            self._last, self._counts = self._counts, Counter()
            self._last_began, self._began = self._began, min(now, self._began + _SPAN)
        seconds = max(1.0, now - self._last_began)
        most = (self._last + self._counts).most_common(_MAX_REPORTED)
        return [TenantRefusals(tenant=name, per_second=count / seconds) for name, count in most]
