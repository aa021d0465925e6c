"""The end of a child: of one that gives way, on a disk that takes no change, without a socket."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluicegate.gateway.supervisor.errors import CannotStart
from sluicegate.gateway.supervisor.process_table import read_table
from sluicegate.gateway.supervisor.spawn import Spawner
from sluicegate.gateway.supervisor.spec import Probe, ProcessRole, ProcessSpec, is_started
from sluicegate.gateway.supervisor.supervisor import Supervisor
from testing.waiting import until

pytestmark = pytest.mark.anyio

WAITS = "import signal; signal.sigwait({signal.SIGTERM})"
# Ends only once its session's group weighs as much as others.
GIVES_WAY = """
import signal
from pathlib import Path
from sluicegate.gateway.supervisor.priority import give_way
from testing.waiting import wait_until
group = Path("/proc/self/autogroup")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
give_way()
print(group.read_text().strip(), flush=True)
signal.sigwait([signal.SIGTERM])
wait_until(lambda: group.read_text().endswith(" nice 0\\n"))
"""


class Printed:
    """A probe of a process that says it is ready by printing something."""

    def __init__(self, log: Path) -> None:
        self._log = log

    async def __call__(self) -> str:
        return "" if self._log.exists() and self._log.stat().st_size else "says nothing"


class Bench:
    """A supervisor with one child, and what it said."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: list[str] = []
        self.log = root / "logs" / "billing.log"
        self.log.parent.mkdir()
        spawner = Spawner(logs=self.log.parent)
        self.supervisor = Supervisor(root=root, spawner=spawner, say=self.said.append)

    async def start(self, script: str, probe: Probe) -> None:
        """Start the child, and wait until it is ready."""
        spec = ProcessSpec(
            name="billing",
            role=ProcessRole.BILLING,
            argv=(sys.executable, "-c", script),
            probe=probe,
            stop_within=20.0,
            gives_way=True,
        )
        await self.supervisor.ready(self.supervisor.start([spec]))

    async def stop(self) -> None:
        """Stop the child."""
        await self.supervisor.stop(asyncio.Event())

    def pid(self) -> int:
        """Return the pid that the table gives; 0 where nothing runs."""
        return next((e.pid for e in read_table(self.root) if e.role is ProcessRole.BILLING), 0)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    async with made.supervisor:
        yield made
        await made.stop()


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(),
    reason="needs scheduling by session, /proc/self/autogroup",
)
async def test_a_process_that_gives_way_is_given_time_to_end(bench: Bench) -> None:
    await bench.start(GIVES_WAY, Printed(bench.log))

    await bench.stop()

    assert bench.log.read_text().endswith(" nice 10\n")
    assert [line for line in bench.said if "stopped" in line] == ["stopped billing"]


async def test_files_of_metrics_that_cannot_be_removed_end_nobody(bench: Bench) -> None:
    await bench.start(WAITS, is_started)
    first = bench.pid()
    # It takes no `unlink`, as nothing on a disk does that has become read-only.
    (bench.root / "metrics" / f"gauge_livesum_{first}.db").mkdir(parents=True)

    os.kill(first, signal.SIGKILL)

    await until(lambda: bench.pid() not in (0, first), what="a successor")


async def test_a_restart_that_finds_its_socket_closed_ends_nobody_else(bench: Bench) -> None:
    await bench.start(WAITS, is_started)
    with socket.socket() as listener:
        pass
    spec = ProcessSpec(
        name="gateway-0",
        role=ProcessRole.GATEWAY,
        argv=(sys.executable, "-c", WAITS),
        probe=Printed(bench.root / "never"),
        listener=listener,
    )

    with pytest.raises(CannotStart, match=r"cannot be run \(its socket is closed\)"):
        await bench.supervisor.ready(bench.supervisor.start([spec]))

    assert bench.pid() != 0
