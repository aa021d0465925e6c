"""Samples memory and processor time of processes while packets are dropped."""

import asyncio
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

_INTERVAL = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ResourceSampler:
    """Samples `processes` twice a second while entered; `died` are those that ended."""

    def __init__(self, processes: Mapping[str, "subprocess.Popen[bytes]"]) -> None:
        self._processes = processes
        self._began: dict[str, float] = {}
        self._at = 0.0
        self._task: asyncio.Task[None] | None = None
        self.memory: dict[str, int] = {}
        """The most bytes that each had in memory."""
        self.cpu: dict[str, float] = {}
        """Processors that each used, on average."""
        self.died: set[str] = set()

    async def __aenter__(self) -> Self:
        self._at = asyncio.get_running_loop().time()
        self._began = {name: _cpu(child.pid) for name, child in self._processes.items()}
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._sample()
        lasted = asyncio.get_running_loop().time() - self._at
        for name, child in self._processes.items():
            if name not in self.died:
                self.cpu[name] = (_cpu(child.pid) - self._began[name]) / lasted

    async def _look(self) -> None:
        while True:
            self._sample()
            await asyncio.sleep(_INTERVAL)

    def _sample(self) -> None:
        for name, child in self._processes.items():
            if child.poll() is not None:
                self.died.add(name)
                continue
            pages = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1])
            self.memory[name] = max(self.memory.get(name, 0), pages * _PAGE_BYTES)


def _cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
