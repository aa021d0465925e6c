"""Cuts the power of a gateway machine under load: everything that is not on its disk is lost.

The data directory is an ext4 file system in a file, on a loop device: the file has what the kernel
has written, and nothing else. So the gateway is killed, the file is copied at once, and the gateway
starts again on the copy, whose event logs are said to be of another boot.
"""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import msgspec

from gateway.auth.keys import hash_key
from gateway.events.syncing import MARK_NAME, SyncedMark, read_mark
from gateway.ledger.ledger import Ledger
from gateway.settings import Settings
from loadtests.gateway import Gateway
from testing.billing import billing
from testing.stub_process import stub_process
from testing.valkey import Valkey
from testing.waiting import wait_until

_KEY = "sk-power-cut-key-0123456789"
_DISK_BYTES = 192 << 20
_TEXTS = 50
_OTHER_BOOT = "the boot before the power cut"


class PowerCut(msgspec.Struct, frozen=True, kw_only=True):
    """Says what a power cut took."""

    answered: int
    rate: float
    """Answers a second."""
    billed: int
    counted: int
    """Requests that the ledger has as lost."""

    @property
    def lost(self) -> int:
        """Requests that were answered and are not billed."""
        return self.answered - self.billed


class Disk:
    """Is an ext4 file system in a file, mounted at `place`."""

    def __init__(self, folder: Path, place: Path) -> None:
        self._image = folder / "disk.ext4"
        self._after = folder / "after.ext4"
        self._place = place
        with self._image.open("wb") as file:
            file.truncate(_DISK_BYTES)
        _run("mkfs.ext4", "-q", str(self._image))

    def mount(self) -> None:
        """Mount it."""
        _run("mount", "-o", "loop", str(self._image), str(self._place))

    def cut(self) -> None:
        """Keep only what was written to the file, as a power cut does."""
        shutil.copyfile(self._image, self._after)
        self.unmount()
        self._after.replace(self._image)
        self.mount()
        for path in self._place.glob(f"events/*/{MARK_NAME}"):
            mark = read_mark(path.parent)
            if mark is not None:
                other = SyncedMark(expected=mark.expected, boot=_OTHER_BOOT)
                path.write_bytes(msgspec.json.encode(other))

    def unmount(self) -> None:
        """Unmount it, as soon as the processes that were killed have let go of it."""
        command = ["umount", str(self._place)]
        wait_until(
            lambda: subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0,
            what="nobody uses the disk",
        )


def cut_power(*, seconds: float, callers: int, is_redis_away: bool) -> PowerCut:
    """Load a gateway of one worker, cut its power, and return what is billed afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="power-cut-") as name,
        Valkey() as cache,
        Valkey("--appendonly", "yes") as state,
        stub_process(service_time=0.001) as stub,
    ):
        folder = Path(name)
        backend = {"id": "stub-0", "url": stub.url}
        document = {
            "regions": [{"name": "eu", "pools": [{"backends": [backend]}]}],
            "limits": {"tenant": []},
        }
        gateway = Gateway(
            folder / "gateway",
            document,
            workers=1,
            cache_url=cache.url,
            state_url=state.url,
            ledger_url=f"sqlite:///{folder / 'ledger.db'}",
            events_keep=0.0,  # a billed log is deleted, so no log is left once all is billed
        )
        with Ledger.create(gateway.settings.ledger) as ledger:
            ledger.accounts.create_tenant("acme")
            ledger.accounts.create_key("acme", key_hash=hash_key(_KEY))
        disk = Disk(folder, gateway.settings.data_dir)
        disk.mount()
        try:
            return _measure(
                gateway, disk, state, seconds=seconds, callers=callers, is_redis_away=is_redis_away
            )
        finally:
            _kill(gateway)
            disk.unmount()


def _measure(
    gateway: Gateway,
    disk: Disk,
    state: Valkey,
    *,
    seconds: float,
    callers: int,
    is_redis_away: bool,
) -> PowerCut:
    gateway.start()
    with billing(_elsewhere(gateway.settings)):
        if is_redis_away:
            state.kill()
        began = time.monotonic()
        answered = asyncio.run(_load(gateway, seconds, callers))
        rate = answered / (time.monotonic() - began)
        disk.cut()
        if is_redis_away:
            state.start()
        gateway.start()
        wait_until(lambda: _is_done(gateway.settings), within=240, what="everything is billed")
    billed, counted = _sums(gateway.settings)
    return PowerCut(answered=answered, rate=rate, billed=billed, counted=counted)


async def _load(gateway: Gateway, seconds: float, callers: int) -> int:
    """Send requests for a time, kill the gateway under them, and return how many were answered."""
    answered = 0
    url = f"http://127.0.0.1:{gateway.port}/v1/classify"
    headers = {"authorization": f"Bearer {_KEY}"}

    async def call(client: httpx.AsyncClient, number: int) -> None:
        nonlocal answered
        while True:
            number += 1
            body = {"model": "stub", "input": [f"text {number % _TEXTS}"]}
            answer = await client.post(url, json=body, headers=headers)
            answered += answer.status_code == 200

    async with httpx.AsyncClient(timeout=30.0) as client:
        calls = [asyncio.create_task(call(client, number)) for number in range(callers)]
        await asyncio.sleep(seconds)
        _kill(gateway)
        await asyncio.gather(*calls, return_exceptions=True)
    return answered


def _kill(gateway: Gateway) -> None:
    """Kill every process of the gateway, and return when all have ended."""
    pids = gateway.processes().values()
    gateway.kill()
    wait_until(lambda: not any(map(_runs, pids)), what="no process is left")


def _runs(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # nobody may have waited for it
    except (FileNotFoundError, ProcessLookupError):
        return False


def _elsewhere(settings: Settings) -> Settings:
    """Return the settings of another machine, which has a data directory of its own."""
    return msgspec.structs.replace(settings, data_dir=settings.data_dir.parent / "billing")


def _is_done(settings: Settings) -> bool:
    """Return whether the ledger has every log of before the cut, and the log of now is alone."""
    return len(list(settings.events_dir.glob("*/writer.lock"))) <= 1 and _sums(settings)[0] > 0


def _sums(settings: Settings) -> tuple[int, int]:
    file = settings.ledger.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(file, timeout=60.0)) as connection:
        (billed,) = connection.execute("SELECT sum(requests) FROM usage_events").fetchone()
        (lost,) = connection.execute("SELECT sum(last - first + 1) FROM gaps").fetchone()
    return int(billed or 0), int(lost or 0)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def measure() -> None:
    """Print what power cuts take, with the state Redis and without; needs root."""
    if os.geteuid():
        sys.exit("file systems are mounted for this, which needs root")
    for is_redis_away in (False, True):
        for _ in range(3):
            found = cut_power(seconds=5.0, callers=4, is_redis_away=is_redis_away)
            state = "away" if is_redis_away else "up"
            print(
                f"state Redis {state}: {found.answered} answered at {found.rate:.0f} a second, "
                f"{found.lost} lost, {found.counted} counted as lost",
                flush=True,
            )
