"""Holds the batches of an executor until a test releases them."""

import math
import threading


class Gate:
    """The pace of a `PacedExecutor`: while closed, it holds every batch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._passes = 0.0
        self.arrived = 0
        self.failing: BaseException | None = None

    def __call__(self, rows: int, length: int) -> None:
        self.arrived += 1
        with self._changed:
            assert self._changed.wait_for(lambda: self._passes > 0, 10.0), "nobody opened the gate"
            self._passes -= 1
        if self.failing is not None:
            raise self.failing

    def open(self) -> None:
        """Let everything pass from now on."""
        self._let_pass(math.inf)

    def let_one_pass(self) -> None:
        """Let the batch that waits pass, or the next."""
        self._let_pass(1)

    def _let_pass(self, batches: float) -> None:
        with self._changed:
            self._passes += batches
            self._changed.notify_all()
