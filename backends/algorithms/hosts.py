"""Owns a backend's algorithm hosts: the processes that run model owners' algorithms."""

from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Self

from sluicegate.backends.algorithms.algorithm_host import AlgorithmHost
from sluicegate.backends.algorithms.budget import Budget
from sluicegate.backends.algorithms.host_process import start_host

# The name and revision of a model.
HostKey = tuple[str, str]


class AlgorithmHosts:
    """Opens hosts and keeps them across reloads, so that an unchanged model keeps its process."""

    def __init__(self, *, shows_output: bool = False) -> None:
        self._shows_output = shows_output
        self._hosts: dict[HostKey, AlgorithmHost] = {}
        self._lost: Counter[tuple[str, str]] = Counter()
        # Linux ends a host when the thread that started the host ends, so one long-lived thread
        # starts all hosts.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="algorithm-starter")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def open(self, key: HostKey, *, code: str, folder: Path, budget: Budget) -> AlgorithmHost:
        """Return a model's host, and start the host's process if necessary. Safe in any thread.

        Raises:
            ValueError: the code cannot be imported, or is not a valid algorithm.
        """
        host = self._hosts.get(key)
        if host is None:
            host = AlgorithmHost(
                name=key[0],
                budget=budget,
                on_lost=partial(self._count, key[0]),
                start=lambda is_restart: start_host(
                    code,
                    folder,
                    memory_bytes=budget.memory_bytes,
                    import_time=budget.import_time,
                    fork=lambda start: self._starter.submit(start).result(),
                    shows_output=self._shows_output,
                    is_restart=is_restart,
                ),
            )
        host.open()
        self._hosts[key] = host
        return host

    def statistics(self) -> dict[tuple[str, str], int]:
        """Return how many processes have failed since the start, by model and reason."""
        return dict(self._lost)

    def keep(self, used: Collection[HostKey]) -> None:
        """Close the hosts of all models that are not in `used`."""
        for key in [key for key in self._hosts if key not in used]:
            self._hosts.pop(key).close()

    def close(self) -> None:
        """Close every host. No host can be opened afterwards."""
        self.keep(())
        self._starter.shutdown(wait=False)

    def _count(self, model: str, reason: str) -> None:
        self._lost[model, reason.replace(" ", "_")] += 1
