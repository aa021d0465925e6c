"""Sends a steady load from a thread, and counts the statuses of its answers."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Self

from loadtests.generator import Target
from loadtests.open_loop import open_loop

_SLICE = 2.0


class Traffic:
    """Sends `bodies` to a path of a port at `rate` a second while entered."""

    def __init__(
        self, port: int, key: str, path: str, bodies: Iterator[bytes], *, rate: float
    ) -> None:
        headers = (("authorization", f"Bearer {key}"),)
        self._target = Target(host="127.0.0.1", port=port, path=path, headers=headers)
        self._bodies = bodies
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._statuses: Counter[int] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def take(self) -> dict[int, int]:
        """Return the statuses since the last call; 0 is no answer."""
        taken, self._statuses = self._statuses, Counter()
        return dict(sorted(taken.items()))

    def _run(self) -> None:
        while not self._stop.is_set():
            answers = asyncio.run(
                open_loop(self._target, self._bodies, rate=self._rate, duration=_SLICE)
            )
            self._statuses.update(answer.status for answer in answers)
