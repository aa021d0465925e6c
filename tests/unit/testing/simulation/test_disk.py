"""Tests simulated disks: what survives a power cut, and the errors of a disk."""

import asyncio
import errno
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sluicegate.gateway.storage.disk import DiskStorage
from testing.simulation import Machine, Simulation
from testing.simulation.clock import EPOCH
from tests.unit.testing.simulation.conftest import Simulate

_SEEDS = range(20)


def _machine(simulation: Simulation) -> Machine:
    return simulation.machine("a", address="10.0.0.1")


def _in_process(simulation: Simulation, machine: Machine, work: Callable[[], object]) -> object:
    """Run a function in a process of the machine; return its result."""

    async def steps() -> object:
        return work()

    async def main() -> object:
        return await machine.start("worker", steps).wait()

    return simulation.run(main, until=100_000)


def _after_crash(simulate: Simulate, work: Callable[[Path], None]) -> list[Path]:
    """Run `work` in a folder and cut the power, for each of many seeds; return the folders."""
    folders = []
    for seed in _SEEDS:
        simulation = simulate(seed)
        machine = _machine(simulation)

        async def steps(machine: Machine = machine) -> None:
            work(machine.folder)

        async def main(machine: Machine = machine) -> None:
            await machine.start("writer", steps).wait()
            machine.crash()

        simulation.run(main)
        folders.append(machine.folder)
    return folders


def _write(path: Path, content: bytes, *, syncs: bool) -> None:
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        if syncs:
            os.fsync(file.fileno())


def _refused(write: Callable[[], object]) -> int | None:
    """Return the number of the error that a write raises."""
    try:
        write()
    except OSError as error:
        return error.errno
    return None


def test_synced_bytes_survive_a_power_cut(simulate: Simulate) -> None:
    """Later ones survive in part, and always from their beginning on."""

    def work(folder: Path) -> None:
        _write(folder / "log", b"synced", syncs=True)
        _write(folder / "log", b"0123456789" * 100, syncs=False)

    found = [(folder / "log").read_bytes() for folder in _after_crash(simulate, work)]

    whole = b"synced" + b"0123456789" * 100
    assert all(content.startswith(b"synced") and whole.startswith(content) for content in found)
    assert {len(content) == 6 for content in found} == {True, False}
    assert len(set(found)) > 3


def test_pages_written_in_place_survive_each_alone(simulate: Simulate) -> None:
    """One may be torn between two sectors."""

    def work(folder: Path) -> None:
        _write(folder / "pages", bytes(16_384), syncs=True)
        with (folder / "pages").open("r+b") as file:
            file.write(b"x" * 16_384)

    found = [(folder / "pages").read_bytes() for folder in _after_crash(simulate, work)]

    assert all(len(content) == 16_384 for content in found)
    counts = {content.count(b"x") for content in found}
    assert 0 in counts
    assert all(count % 512 == 0 for count in counts)
    assert any(count % 4096 for count in counts)


def test_a_renamed_file_has_its_old_or_its_new_name(simulate: Simulate) -> None:
    """A rename without a sync of the folder may be undone, and never loses the file."""

    def work(folder: Path) -> None:
        _write(folder / "old", b"content", syncs=True)
        (folder / "old").rename(folder / "new")

    found = [
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in _after_crash(simulate, work)
    ]

    assert {"old": b"content"} in found
    assert {"new": b"content"} in found
    assert all(len(names) == 1 for names in found)


def test_a_synced_folder_keeps_its_names(simulate: Simulate) -> None:
    """A new file that was synced with its folder is there."""

    def work(folder: Path) -> None:
        (folder / "inner").mkdir()
        _write(folder / "inner" / "new", b"content", syncs=True)
        file = os.open(folder / "inner", os.O_RDONLY)
        os.fsync(file)
        os.close(file)

    for folder in _after_crash(simulate, work):
        assert (folder / "inner" / "new").read_bytes() == b"content"


def test_a_killed_process_loses_nothing_that_it_wrote(simulation: Simulation) -> None:
    """The kernel has it."""
    machine = _machine(simulation)

    async def steps() -> None:
        _write(machine.folder / "log", b"written", syncs=False)
        await asyncio.sleep(100)

    async def main() -> None:
        process = machine.start("writer", steps)
        await asyncio.sleep(1)
        process.kill()

    simulation.run(main)

    assert (machine.folder / "log").read_bytes() == b"written"


def test_a_full_disk_lets_no_file_grow(simulation: Simulation) -> None:
    """What is allocated can still be written."""
    machine = _machine(simulation)

    def work() -> list[int | None]:
        file = os.open(machine.folder / "log", os.O_CREAT | os.O_RDWR)
        os.posix_fallocate(file, 0, 4096)
        machine.disk.is_full = True
        return [
            _refused(lambda: os.pwrite(file, b"inside", 100)),
            _refused(lambda: os.pwrite(file, b"beyond", 4096)),
            _refused(lambda: os.posix_fallocate(file, 0, 8192)),
            _refused(lambda: (machine.folder / "new").write_bytes(b"new")),
            _refused((machine.folder / "folder").mkdir),
            _refused(lambda: os.close(os.open(machine.folder / "third", os.O_CREAT | os.O_RDWR))),
        ]

    assert _in_process(simulation, machine, work) == [None] + 5 * [errno.ENOSPC]


def test_a_file_that_is_open_notices_a_broken_disk(simulation: Simulation) -> None:
    """Writes and syncs fail with an error of input and output."""
    machine = _machine(simulation)

    def work() -> list[int | None]:
        file = (machine.folder / "log").open("w")
        file.write("text")
        machine.disk.is_broken = True
        found = [_refused(file.flush), _refused(lambda: os.fsync(file.fileno()))]
        machine.disk.is_broken = False
        file.close()
        return found

    assert _in_process(simulation, machine, work) == [errno.EIO, errno.EIO]
    assert (machine.folder / "log").read_text() == "text"


def test_a_sync_takes_virtual_time(simulation: Simulation) -> None:
    """A slow disk blocks the thread that syncs."""
    machine = _machine(simulation)

    def work() -> float:
        machine.disk.sync_seconds = 3.0
        began = time.monotonic()
        _write(machine.folder / "log", b"content", syncs=True)
        return time.monotonic() - began

    assert _in_process(simulation, machine, work) == pytest.approx(3, abs=0.01)


def _insert(path: Path, *, holds: float = 0.0, timeout: float = 5.0) -> None:
    with closing(sqlite3.connect(path, timeout=timeout, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS rows (value)")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO rows VALUES (1)")
        time.sleep(holds)
        connection.execute("COMMIT")


def _count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM rows").fetchone()[0])


def test_sqlite_waits_for_locks_in_virtual_time(simulation: Simulation) -> None:
    """As long as the timeout of the connection."""
    machine = _machine(simulation)
    path = machine.folder / "ledger.db"

    async def hold() -> None:
        _insert(path, holds=3)

    async def wait() -> None:
        _insert(path)

    async def give_up() -> None:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            _insert(path, timeout=1)

    async def main() -> None:
        holder = machine.start("holder", hold)
        await asyncio.sleep(1)
        others = [machine.start("waiter", wait), machine.start("impatient", give_up)]
        for process in [holder, *others]:
            await process.wait()

    simulation.run(main, until=100)

    assert simulation.now == pytest.approx(3, abs=0.1)
    assert _count(path) == 2


def test_a_killed_process_rolls_its_transaction_back(simulation: Simulation) -> None:
    """It leaves no lock of SQLite."""
    machine = _machine(simulation)
    path = machine.folder / "ledger.db"

    async def hold() -> None:
        _insert(path, holds=100)

    async def insert() -> None:
        _insert(path)

    async def main() -> None:
        holder = machine.start("holder", hold)
        await asyncio.sleep(1)
        holder.kill()
        await machine.start("other", insert).wait()

    simulation.run(main, until=50)

    assert _count(path) == 1


def test_sqlite_notices_a_full_disk(simulation: Simulation) -> None:
    """A statement that writes fails as on a full disk."""
    machine = _machine(simulation)

    def work() -> int:
        machine.disk.is_full = True
        with pytest.raises(sqlite3.OperationalError) as caught:
            _insert(machine.folder / "ledger.db")
        return caught.value.sqlite_errorcode

    assert _in_process(simulation, machine, work) == sqlite3.SQLITE_FULL


def test_a_database_keeps_its_commits_at_a_power_cut(simulate: Simulate) -> None:
    """SQLite syncs them."""

    def work(folder: Path) -> None:
        _insert(folder / "ledger.db")
        _write(folder / "other", b"content", syncs=False)

    for folder in _after_crash(simulate, work):
        assert _count(folder / "ledger.db") == 1


def test_a_file_has_the_time_of_its_last_write(simulation: Simulation) -> None:
    """By the clock of its machine. Neither reading nor another name changes it."""
    machine = _machine(simulation)
    path = machine.folder / "log"
    machine.clock.jump(-3_600)

    def writes() -> list[Callable[[], object]]:
        file = os.open(path, os.O_CREAT | os.O_RDWR)
        return [
            lambda: os.write(file, b"content"),
            lambda: os.pwrite(file, b"content", 100),
            lambda: os.posix_fallocate(file, 0, 4096),
            lambda: os.ftruncate(file, 10),
            lambda: os.truncate(path, 5),
            lambda: _write(path, b"more", syncs=False),
            lambda: path.write_text("other"),
        ]

    def work() -> list[tuple[float, float]]:
        found = []
        for write in writes():
            time.sleep(50)
            write()
            written = time.time_ns() / 1e9
            time.sleep(50)
            path.read_bytes()
            path.rename(path.with_name("other")).rename(path)
            found += [(path.stat().st_mtime, written), (path.stat().st_ctime, written)]
        return found

    found = _in_process(simulation, machine, work)

    assert isinstance(found, list)
    assert all(told == pytest.approx(written, abs=1e-3) for told, written in found)
    assert len(found) == 14


def test_files_from_before_the_start_have_its_time(simulation: Simulation) -> None:
    """Also if another program wrote them: that has real time."""
    machine = _machine(simulation)
    (machine.folder / "old").write_bytes(b"content")

    def work() -> float:
        time.sleep(100)
        return time.time_ns() / 1e9 - (machine.folder / "old").stat().st_mtime

    assert _in_process(simulation, machine, work) == pytest.approx(100, abs=0.01)


def test_a_file_keeps_its_time_at_a_power_cut(simulate: Simulate) -> None:
    """It is the time of a write, not of the boot."""
    for folder in _after_crash(
        simulate, lambda folder: _write(folder / "log", b"content", syncs=True)
    ):
        assert (folder / "log").stat().st_mtime == pytest.approx(EPOCH, abs=1)


def test_a_leftover_of_a_day_ago_is_deleted_by_virtual_time(simulation: Simulation) -> None:
    machine = _machine(simulation)
    storage = DiskStorage(machine.folder)

    def names_after(seconds: float) -> list[str]:
        time.sleep(seconds)
        storage.remove_unfinished()
        return sorted(path.name for path in machine.folder.iterdir())

    def work() -> list[list[str]]:
        (machine.folder / ".unfinished-1").write_bytes(b"content")
        return [names_after(86_000), names_after(1_000)]

    assert _in_process(simulation, machine, work) == [[".unfinished-1"], []]


def _lose_answer(simulation: Simulation, *, folder: str) -> tuple[str, float, int]:
    """Insert a row on the machine `a`, which shall lose the answer to its next commit.

    Returns:
        The error, the seconds that the commit took, and the number of rows.
    """
    machines = {"a": _machine(simulation), "b": simulation.machine("b", address="10.0.0.2")}
    path, error = machines[folder].folder / "ledger.db", ""

    def work() -> float:
        nonlocal error
        _insert(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO rows VALUES (1)")
            machines["a"].commit_timeout = 2.0
            begun = time.monotonic()
            try:
                connection.commit()
            except sqlite3.ProgrammingError as caught:
                error = str(caught)
            return time.monotonic() - begun

    took = _in_process(simulation, machines["a"], work)
    assert isinstance(took, float)
    return error, took, _count(path)


def test_a_commit_whose_answer_is_lost_is_done(simulation: Simulation) -> None:
    error, took, rows = _lose_answer(simulation, folder="b")

    assert "closed" in error
    assert took == pytest.approx(2.0, abs=0.1)
    assert rows == 2


def test_a_machine_reaches_the_databases_on_its_own_disk(simulation: Simulation) -> None:
    error, took, rows = _lose_answer(simulation, folder="a")

    assert (error, rows) == ("", 2)
    assert took < 0.1


def test_a_connection_to_a_database_that_was_lost_stays_broken(simulation: Simulation) -> None:
    """Its transaction has ended; a new connection works."""
    machine, other = _machine(simulation), simulation.machine("b", address="10.0.0.2")
    path = other.folder / "ledger.db"

    def work() -> int:
        _insert(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO rows VALUES (1)")
            machine.lose_databases(timeout=2.0)
            machine.database_timeout = None
            for statement in ("INSERT INTO rows VALUES (1)", "SELECT 1"):
                with pytest.raises(sqlite3.ProgrammingError, match="closed"):
                    connection.execute(statement)
        _insert(path)
        return _count(path)

    assert _in_process(simulation, machine, work) == 2
