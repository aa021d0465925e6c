"""The supervisor with real child processes: restarts, order of stopping, nothing left behind."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from sluicegate.gateway.supervisor.errors import CannotStart
from sluicegate.gateway.supervisor.probes import probe_valkey
from sluicegate.gateway.supervisor.process_table import read_table, start_of
from sluicegate.gateway.supervisor.spawn import Spawner
from sluicegate.gateway.supervisor.spec import Probe, ProcessRole, ProcessSpec, is_started
from sluicegate.gateway.supervisor.supervisor import Supervisor
from sluicegate.gateway.supervisor.valkey import STATE_OPTIONS, find_program, valkey_spec
from testing.waiting import until, wait_until

pytestmark = pytest.mark.anyio

WAITS = "import signal; signal.sigwait({signal.SIGTERM})"
DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(1, flush=True)
while True:
    signal.pause()
"""
# Runs once, and never again.
ONCE = """
import pathlib, signal
mark = pathlib.Path("{}") / "ran"
if mark.exists():
    raise SystemExit(3)
mark.touch()
signal.sigwait({{signal.SIGTERM}})
"""
ROOT = Path(__file__).parents[2]

BEATS = """
import os, signal
os.write(int(os.environ["BEATS"]), b".")
signal.pause()
"""


class Ready:
    """A probe of a process that says it is ready by printing something."""

    def __init__(self, log: Path) -> None:
        self._log = log

    async def __call__(self) -> str:
        return "" if self._log.exists() and self._log.stat().st_size else "says nothing"


class FileThere:
    """A probe that is ready when a file is there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __call__(self) -> str:
        return "" if self._path.exists() else "did not run"


class Bench:
    """A supervisor in a folder, and what it said."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: list[str] = []
        self.force = asyncio.Event()
        (root / "logs").mkdir()
        spawner = Spawner(logs=root / "logs")
        self.supervisor = Supervisor(root=root, spawner=spawner, say=self.said.append)

    def spec(
        self,
        script: str,
        role: ProcessRole = ProcessRole.BACKEND,
        *,
        probe: Probe = is_started,
        stop_within: float = 10.0,
        ready_within: float = 20.0,
    ) -> ProcessSpec:
        return ProcessSpec(
            name=role.value,
            role=role,
            argv=(sys.executable, "-c", script),
            probe=probe,
            stop_within=stop_within,
            ready_within=ready_within,
        )

    async def crash_for_ever(self) -> None:
        """Start a process that is ready once, and then crashes at each start."""
        spec = self.spec(ONCE.format(self.root), probe=FileThere(self.root / "ran"))
        await self.supervisor.ready(self.supervisor.start([spec]))
        pid = self.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def pid(self, role: ProcessRole = ProcessRole.BACKEND) -> int | None:
        """Return the pid that the table gives."""
        return next((e.pid for e in read_table(self.root) if e.role is role), None)

    def heard(self, text: str) -> Callable[[], bool]:
        return lambda: any(text in line for line in self.said)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    async with made.supervisor:
        yield made
        await made.supervisor.stop(made.force)


async def test_a_process_that_is_killed_is_started_again(bench: Bench) -> None:
    children = bench.supervisor.start([bench.spec(WAITS)])
    await bench.supervisor.ready(children)
    first = bench.pid()
    assert first is not None

    os.kill(first, signal.SIGKILL)
    await until(lambda: bench.pid() not in (None, first), what="a successor")

    assert bench.heard("backend died (SIGKILL); restarting in 0.1 s")()
    assert start_of(first) == 0


async def test_a_process_that_keeps_crashing_waits_longer_each_time(bench: Bench) -> None:
    await bench.crash_for_ever()

    await until(bench.heard("restarting in 0.4 s"), what="the third wait")

    waits = [line.partition("restarting in ")[2][:3] for line in bench.said if "restart" in line]
    assert waits[:3] == ["0.1", "0.2", "0.4"]
    assert bench.heard("backend exited with code 3")()


async def test_a_process_that_ends_before_it_is_ready_is_an_error_with_its_last_words(
    bench: Bench,
) -> None:
    spec = bench.spec("raise SystemExit('no models in `m`')", probe=Ready(bench.root / "never"))

    with pytest.raises(CannotStart) as caught:
        await bench.supervisor.ready(bench.supervisor.start([spec]))

    message = str(caught.value)
    assert "backend exited with code 1 while starting (`no models in `m``)" in message
    assert str(bench.root / "logs" / "backend.log") in message


async def test_a_process_that_is_never_ready_is_an_error(bench: Bench) -> None:
    spec = bench.spec(WAITS, probe=Ready(bench.root / "never"), ready_within=0.2)

    with pytest.raises(CannotStart, match=r"backend says nothing within 0\.2 s; see "):
        await bench.supervisor.ready(bench.supervisor.start([spec]))


async def test_a_process_that_has_loaded_and_is_not_ready_is_an_error(bench: Bench) -> None:
    spec = msgspec.structs.replace(
        bench.spec(BEATS, probe=Ready(bench.root / "never"), ready_within=10_000),
        heartbeat_variable="BEATS",
        ready_after_response_within=0.1,
    )

    with pytest.raises(CannotStart, match="backend says nothing within"):
        await bench.supervisor.ready(bench.supervisor.start([spec]))


async def test_a_program_that_does_not_exist_is_an_error(bench: Bench) -> None:
    spec = msgspec.structs.replace(
        bench.spec(""), argv=("/no/such/program",), probe=Ready(bench.root / "never")
    )

    with pytest.raises(CannotStart, match="cannot be run"):
        await bench.supervisor.ready(bench.supervisor.start([spec]))


async def test_processes_stop_in_the_order_of_their_roles(bench: Bench) -> None:
    names = ("VALKEY_STATE", "BACKEND", "BILLING", "SHIPPER", "GATEWAY")
    roles = [ProcessRole[name] for name in names]
    await bench.supervisor.ready(bench.supervisor.start([bench.spec(WAITS, r) for r in roles]))

    await bench.supervisor.stop(bench.force)

    stopped = [line.split()[1] for line in bench.said if line.startswith("stopped")]
    assert stopped == ["gateway", "shipper", "billing", "backend", "valkey-state"]
    assert [entry.role for entry in read_table(bench.root)] == [ProcessRole.SUPERVISOR]


async def test_a_process_that_does_not_listen_is_killed_when_its_time_is_over(
    bench: Bench,
) -> None:
    log = bench.root / "logs" / "backend.log"
    children = bench.supervisor.start([bench.spec(DEAF, probe=Ready(log), stop_within=0.1)])
    await bench.supervisor.ready(children)
    pid = bench.pid()

    await bench.supervisor.stop(bench.force)

    assert bench.heard("stopped backend (by force)")()
    assert pid is not None
    assert start_of(pid) == 0


async def test_a_second_signal_ends_the_wait(bench: Bench) -> None:
    log = bench.root / "logs" / "backend.log"
    children = bench.supervisor.start([bench.spec(DEAF, probe=Ready(log), stop_within=100)])
    await bench.supervisor.ready(children)

    bench.force.set()
    await bench.supervisor.stop(bench.force)

    assert bench.heard("stopped backend (by force)")()


async def test_a_stop_during_the_wait_for_a_restart_ends_it(bench: Bench) -> None:
    await bench.crash_for_ever()
    await until(bench.heard("restarting in 0.2 s"), what="a second crash")

    await bench.supervisor.stop(bench.force)

    assert bench.pid() is None


async def test_live_gauges_of_a_process_end_with_it_and_counters_stay(bench: Bench) -> None:
    metrics = bench.root / "metrics"
    metrics.mkdir()
    await bench.supervisor.ready(bench.supervisor.start([bench.spec(WAITS)]))
    pid = bench.pid()
    gauge, counter = metrics / f"gauge_livesum_{pid}.db", metrics / f"counter_{pid}.db"
    gauge.touch()
    counter.touch()

    await bench.supervisor.stop(bench.force)

    assert not gauge.exists()
    assert counter.exists()


async def test_valkey_keeps_what_it_was_told_over_a_crash(bench: Bench) -> None:
    role, root = ProcessRole.VALKEY_STATE, bench.root
    spec = valkey_spec(role, STATE_OPTIONS, program=find_program(), sockets=root, data=root)
    await bench.supervisor.ready(bench.supervisor.start([spec]))
    pid = bench.pid(ProcessRole.VALKEY_STATE)
    assert pid is not None
    async with connected(spec) as (reader, writer):
        writer.write(b"SET k v\r\n")
        assert await reader.readline() == b"+OK\r\n"

    os.kill(pid, signal.SIGKILL)
    await until(lambda: bench.pid(ProcessRole.VALKEY_STATE) not in (None, pid), what="a successor")
    while await spec.probe():
        await until(lambda: True)

    async with connected(spec) as (reader, writer):
        writer.write(b"GET k\r\n")
        assert await reader.readline() == b"$1\r\n"


async def test_a_valkey_that_is_not_there_is_not_ready(tmp_path: Path) -> None:
    assert await probe_valkey(str(tmp_path / "none")) != ""


async def test_a_step_that_fails_is_an_error_with_its_last_line(bench: Bench) -> None:
    spawner = Spawner(logs=bench.root / "logs")
    script = "print('one'); import sys; sys.exit('Error: the weights are missing')"

    with pytest.raises(CannotStart, match=r"^models failed: the weights are missing; see "):
        await spawner.run_step(
            "models", (sys.executable, "-u", "-c", script), environment={}, tell=bench.said.append
        )

    assert bench.said[0] == "one"


async def test_a_step_is_given_its_secret_as_input(bench: Bench) -> None:
    spawner = Spawner(logs=bench.root / "logs")
    script = "import sys; sys.exit(sys.stdin.read() != 'secret')"

    await spawner.run_step("step", (sys.executable, "-c", script), environment={}, secret="secret")


@asynccontextmanager
async def connected(
    spec: ProcessSpec,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(spec.address.removeprefix("unix:"))
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


DRIVER = """
import asyncio, sys
from pathlib import Path
from sluicegate.gateway.supervisor.data_directory import open_directory
from sluicegate.gateway.supervisor.spawn import Spawner
from sluicegate.gateway.supervisor.spec import ProcessSpec, ProcessRole
from sluicegate.gateway.supervisor.supervisor import Supervisor, supervise

def say(line):
    print(line, flush=True)

with open_directory(Path(sys.argv[1]), say) as directory:
    supervisor = Supervisor(
        root=directory.root,
        spawner=Spawner(logs=directory.logs),
        say=say,
    )
    spec = ProcessSpec(
        name="backend", role=ProcessRole.BACKEND,
        argv=(sys.executable, "-c", sys.argv[2])
    )

    async def start():
        await supervisor.ready(supervisor.start([spec]))
        say("running")

    async def reload():
        say("reloaded")

    asyncio.run(supervise(supervisor, start, reload=reload))
"""


class Driver:
    """A supervisor in a process of its own."""

    def __init__(self, root: Path, script: str = WAITS) -> None:
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(root), script],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def lines_until(self, text: str) -> list[str]:
        """Read what it says, up to a line that holds `text`."""
        assert self.process.stdout is not None
        lines: list[str] = []
        while not lines or text not in lines[-1]:
            lines.append(self.process.stdout.readline())
            assert lines[-1], f"it ended after {lines}"
        return lines

    def child(self) -> int:
        """Return the pid of its child."""
        return next(e.pid for e in read_table(self.root) if e.role is ProcessRole.BACKEND)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path / "d")
    yield made
    made.end()


def test_children_die_with_a_supervisor_that_is_killed(driver: Driver) -> None:
    driver.lines_until("running")
    child = driver.child()

    driver.process.kill()
    driver.process.wait()

    wait_until(lambda: start_of(child) == 0, what="the child ended")


def test_a_signal_stops_everything_and_leaves_no_table(driver: Driver) -> None:
    driver.lines_until("running")
    child = driver.child()

    driver.process.send_signal(signal.SIGINT)
    lines = driver.lines_until("stopped backend")

    assert lines[0].startswith("stopping")
    assert driver.process.wait(timeout=60) == 0
    assert start_of(child) == 0
    assert read_table(driver.root) == []


def test_a_hangup_reloads(driver: Driver) -> None:
    driver.lines_until("running")

    driver.process.send_signal(signal.SIGHUP)

    driver.lines_until("reloaded")


def test_the_next_start_takes_over_after_a_kill(driver: Driver) -> None:
    driver.lines_until("running")
    driver.process.kill()
    driver.process.wait()

    successor = Driver(driver.root)

    try:
        successor.lines_until("running")
        assert start_of(successor.child()) > 0
    finally:
        successor.end()
