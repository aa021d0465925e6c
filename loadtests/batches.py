"""Kills every process of a running system in turn while it runs a batch, beside a steady load.

Then each line is looked for in the output, and in the ledger, where it must be exactly once; and
the load beside the batch is compared with the same load alone, in turns, while the process that
runs the batch is stopped and goes on.
"""

import asyncio
import math
import os
import signal
import sqlite3
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import msgspec

from loadtests.faults.model import MODEL, ModelOracle, texts, write_revision
from loadtests.generator import Target
from loadtests.machine import this_machine
from loadtests.open_loop import open_loop
from loadtests.paired_latency import LatencyRound, PairedLatencies, p95, pair
from testing.system import System
from testing.waiting import wait_until

_PATH = "/v1/embed"
_RATE = 20.0
_WINDOW = 4.0
"""Seconds of a load that is compared."""
_DRAINED = 0.5
"""Seconds in which the work that is under way ends, once no more comes."""
_BETWEEN = 6.0
"""Seconds between two kills."""
_CHECKED = 1000
_BOUND = 1.2
"""What p95 beside the batch may be, times that alone."""
_PACED = {
    "SLUICEGATE_BATCHES": "true",
    # A process that is stopped for a while is not to be replaced.
    "SLUICEGATE_HEARTBEAT_TIMEOUT": "0",
    "SLUICEGATE_BACKEND_PROVIDER": "paced",
    "SLUICEGATE_BACKEND_THREADS": "1",
    "SLUICEGATE_BACKEND_PACED_BASE": "2e-3",
    "SLUICEGATE_BACKEND_PACED_TOKEN": "2e-5",
}
ROLES = (
    *("gateway", "batches", "billing", "request-log", "shipper", "admin"),
    *("valkey-cache", "valkey-state", "backend", "supervisor"),
)
_Output = dict[str, Any]  # a line of JSON


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the lines, by output and by ledger; latencies in milliseconds."""

    lines: int
    completed: int
    failed: int
    twice: int
    lost: int
    wrong: int
    billed: int
    """Lines that the ledger has."""
    billed_twice: int
    billed_items: int
    seconds: float


def measure(*, lines: int, kill: bool, rounds: int) -> None:
    """Run a batch of `lines`, print what became of it, and fail where a line is not there once.

    Fails, too, where the p95 beside it is over the bound, unless the controls say that nobody can
    tell on this machine.
    """
    with tempfile.TemporaryDirectory(prefix="sluicegate-batches-") as folder:
        result, latencies = _Run(Path(folder), lines, rounds).run(kill=kill)
    print(this_machine())
    for part in (result, latencies):
        for name, value in () if part is None else msgspec.structs.asdict(part).items():
            shown = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
            print(f"{name:>14} {shown}")
    is_whole = result.completed == result.billed == result.billed_items == result.lines
    if not is_whole or result.twice or result.lost or result.wrong or result.billed_twice:
        raise SystemExit("a line was lost, or is there twice")
    if latencies is not None and latencies.ratio > _BOUND:
        if latencies.control < _BOUND:
            raise SystemExit(f"p95 beside the batch is more than {_BOUND} times that alone")
        print("nothing is said of p95: that of equal windows alone differs by more")


class _Run:
    def __init__(self, folder: Path, lines: int, rounds: int) -> None:
        self._folder = folder
        self._texts = list(islice(texts(1), lines))
        self._rounds = rounds
        self._more = texts(2)
        self._started = 0.0
        write_revision(folder / "models", 1)
        config = folder / "config"
        config.mkdir()
        plenty = [{"name": "plenty", "unit": "requests", "capacity": 10**9, "window": 1}]
        # JSON is YAML.
        (config / "gateway.yaml").write_bytes(msgspec.json.encode({"limits": {"tenant": plenty}}))
        self._system = System(
            folder / "data",
            models=folder / "models",
            config=config,
            environment=_PACED,
        )

    def run(self, *, kill: bool) -> tuple[BatchResult, PairedLatencies | None]:
        with self._system as system:
            self._latencies(2.0)  # what starts late has started then
            batch = self._create()
            wait_until(lambda: self._done(batch) > 0, within=60.0, what="the batch runs")
            rounds = [self._round() for _ in range(self._rounds)]
            for role in ROLES if kill else ():
                self._kill(role)
                print(f"{time.monotonic() - self._started:8.1f} s  killed {role}:"
                      f" {self._done(batch):,} lines are done")  # fmt: skip
                time.sleep(_BETWEEN)
            wait_until(
                lambda: self._status(batch)["status"] == "completed", within=3600.0, what="its end"
            )
            took = time.monotonic() - self._started
            ended = self._status(batch)
            output = self._content(ended["output_file_id"])
            failed = ended["request_counts"]["failed"]
            time.sleep(3.0)  # the last events are on their way to the ledger
            system.stop()
        return self._judged(batch, output, failed, took), pair(rounds) if rounds else None

    def _round(self) -> LatencyRound:
        """Return latencies while the batch stands still, while it runs, and so again."""
        with self._paused():
            before = self._latencies(_WINDOW)
        beside = self._latencies(_WINDOW)
        with self._paused():
            after = self._latencies(_WINDOW)
        found = LatencyRound(before=before, beside=beside, after=after)
        print(f"p95 {p95(before):.1f}, beside {p95(beside):.1f}, {p95(after):.1f} ms")
        return found

    @contextmanager
    def _paused(self) -> Iterator[None]:
        (process,) = self._system.processes("batches")
        os.kill(process.pid, signal.SIGSTOP)
        try:
            time.sleep(_DRAINED)
            yield
        finally:
            os.kill(process.pid, signal.SIGCONT)

    def _latencies(self, seconds: float) -> list[float]:
        """Return those of new texts that somebody waits for, in milliseconds; refused: infinite."""
        target = Target(
            host="127.0.0.1",
            port=self._system.port,
            path=_PATH,
            headers=(("authorization", f"Bearer {self._system.key}"),),
        )
        bodies = (_body(text) for text in self._more)
        found = asyncio.run(open_loop(target, bodies, rate=_RATE, duration=seconds, connections=4))
        return [
            answer.latency * 1000 if answer.status == httpx.codes.OK else math.inf
            for answer in found
        ]

    def _create(self) -> str:
        content = b"".join(
            msgspec.json.encode(
                {
                    "custom_id": str(number),
                    "method": "POST",
                    "url": _PATH,
                    "body": {"model": MODEL, "input": text},
                }
            )
            + b"\n"
            for number, text in enumerate(self._texts)
        )
        with self._system.client() as client:
            file = client.post(
                "/v1/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", content)}
            )
            body = {
                "input_file_id": file.raise_for_status().json()["id"],
                "endpoint": _PATH,
                "completion_window": "24h",
            }
            self._started = time.monotonic()
            return str(client.post("/v1/batches", json=body).raise_for_status().json()["id"])

    def _status(self, batch: str) -> Any:
        """Return the batch; ask again while the gateway is away."""
        while True:
            try:
                with self._system.client() as client:
                    found = client.get(f"/v1/batches/{batch}")
                if found.is_success:
                    return found.json()
            except httpx.TransportError:
                pass
            time.sleep(0.5)

    def _done(self, batch: str) -> int:
        counts = self._status(batch)["request_counts"]
        return int(counts["completed"] + counts["failed"])

    def _kill(self, role: str) -> None:
        if role != "supervisor":
            self._system.kill(role)
            return
        os.kill(self._system.pid, signal.SIGKILL)
        self._system.wait()
        self._system.start()

    def _content(self, file: str) -> list[_Output]:
        with self._system.client() as client:
            content = client.get(f"/v1/files/{file}/content").raise_for_status().content
        return [msgspec.json.decode(line) for line in content.splitlines()]

    def _judged(
        self, batch: str, output: Sequence[_Output], failed: int, took: float
    ) -> BatchResult:
        times = Counter(line["custom_id"] for line in output)
        checker = ModelOracle([self._folder / "models"])
        wrong = 0
        for line in output[:: max(1, len(output) // _CHECKED)]:
            body = msgspec.json.encode(line["response"]["body"])
            wrong += not checker.is_right_text(self._texts[int(line["custom_id"])], body)
        billed = _billed(self._folder / "data" / "ledger.db", f"{batch}-")
        return BatchResult(
            lines=len(self._texts),
            completed=len(times),
            failed=failed,
            twice=sum(count > 1 for count in times.values()),
            lost=len(self._texts) - len(times) - failed,
            wrong=wrong,
            billed=len(billed),
            billed_twice=sum(len(each) > 1 for each in billed.values()),
            billed_items=sum(sum(each) for each in billed.values()),
            seconds=took,
        )


def _billed(ledger: Path, start: str) -> dict[str, list[int]]:
    """Return the items of each event of a batch that the ledger has, by the id of its line."""
    query = "SELECT id, requests, items FROM usage_events WHERE batch = 1 AND status = 200"
    found = defaultdict[str, list[int]](list)
    with closing(sqlite3.connect(ledger)) as connection:
        for id_, requests, items in connection.execute(query):
            name = str(id_) if str(id_).startswith(start) else "of another batch"
            found[name] += [int(items)] * int(requests)
    return found


def _body(text: str) -> bytes:
    return msgspec.json.encode({"model": MODEL, "input": text})
