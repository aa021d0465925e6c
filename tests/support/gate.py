"""Holds the batches of an executor until a test lets them go."""

import threading


class Gate:
    """The pace of a `PacedExecutor`: closed, it holds every batch that arrives."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.arrived = 0
        self.failing: BaseException | None = None

    def __call__(self, rows: int, length: int) -> None:
        self.arrived += 1
        assert self._open.wait(10.0), "nobody opened the gate"
        if self.failing is not None:
            raise self.failing

    def open(self) -> None:
        """Let everything pass from now on."""
        self._open.set()
