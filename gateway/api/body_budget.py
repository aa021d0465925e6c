"""Bounds the memory of large request bodies while they arrive and are answered."""

from typing import Protocol

from gateway.errors import Overloaded
from gateway.runtime.runtime import Runtime

LARGE = 256 * 1024
"""Bytes above which a body is large."""
# The budget in bodies of the largest size that the document allows.
_MAX_LARGE_BODIES = 16


class BudgetedBody(Protocol):
    """Has a body; `body_bytes` are what the budget counts of it."""

    body_bytes: int
    runtime: Runtime


class BodyMemoryBudget:
    """Counts the bytes of large bodies against a budget. One per worker."""

    def __init__(self) -> None:
        self.used_bytes = 0

    def reserve(self, state: BudgetedBody, size: int) -> None:
        """Count that `size` bytes of a request's body have arrived.

        Raises:
            Overloaded: the budget is exhausted.
        """
        if size <= LARGE:
            return
        self.used_bytes += size - state.body_bytes
        state.body_bytes = size
        if self.used_bytes > _MAX_LARGE_BODIES * state.runtime.document.request.max_body_bytes:
            raise Overloaded(
                "Too many large bodies arrive at once; try again, or send fewer items in each.",
                retry_after=1.0,
            )

    def release(self, state: BudgetedBody) -> None:
        """Return the bytes of a finished request to the budget."""
        self.used_bytes -= state.body_bytes
        state.body_bytes = 0
