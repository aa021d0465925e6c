"""Divides memory of a gateway process fairly among keys; a request without room may retry."""

from collections.abc import Callable, Hashable
from typing import Final

from sluicegate.gateway.errors import Overloaded
from sluicegate.wire import byte_budget
from sluicegate.wire.byte_budget import RETRY_AFTER, SharedBytes

LARGE: Final = byte_budget.LARGE
"""Bytes up to which a request holds nothing."""


class ByteBudget(SharedBytes):
    """Counts the bytes that API keys hold; errors name `what` fills the budget.

    `hold` raises `Overloaded` if there is no room until the deadline.
    """

    def __init__(self, limit_bytes: int, *, what: str, clock: Callable[[], float]) -> None:
        def exhausted() -> Overloaded:
            return Overloaded(
                f"{what} use all the memory set aside for them. Try again, or send fewer items"
                " in each request.",
                retry_after=RETRY_AFTER,
            )

        super().__init__(limit_bytes, exhausted=exhausted, clock=clock)


class HeldBytes:
    """The bytes of a budget that one request holds; they may grow, and are released together."""

    def __init__(self, budget: ByteBudget, key: Hashable) -> None:
        self._budget = budget
        self._key = key
        self.size = 0

    def grow(self, size: int) -> None:
        """Hold `size` bytes in all; a request that is not large holds none.

        Raises:
            Overloaded: there is no room.
        """
        if size <= max(LARGE, self.size):
            return
        if not self._budget.try_hold(self._key, size - self.size):
            raise self._budget.exhausted()
        self.size = size

    def release(self) -> None:
        """Release all of them."""
        if self.size:
            self._budget.release(self._key, self.size)
            self.size = 0
