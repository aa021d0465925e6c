"""Kills every process of a running system in turn while it runs a batch, beside a steady load.

Then each line is looked for in the output, and in the ledger, where it must be exactly once; and
the load beside the batch is compared with the same load alone.
"""

import asyncio
import os
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import msgspec

from loadtests.chaos.models import MODEL, AnswerChecker, texts, write_revision
from loadtests.generator import Target
from loadtests.harness.system import System
from loadtests.harness.waiting import wait_until
from loadtests.machine import this_machine
from loadtests.open_loop import open_loop

_PATH = "/v1/embed"
_RATE = 20.0
_BETWEEN = 6.0
"""Seconds between two kills."""
_CHECKED = 1000
_PACED = {
    "SLUICEGATE_BATCHES": "true",
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
    billed_items: int
    seconds: float
    alone: float
    beside: float


def measure(*, lines: int, kill: bool, seconds: float) -> None:
    """Run a batch of `lines`, print what became of it, and fail where a line is not there once."""
    with tempfile.TemporaryDirectory(prefix="sluicegate-batches-") as folder:
        result = _Run(Path(folder), lines, seconds).run(kill=kill)
    print(this_machine())
    for name, value in msgspec.structs.asdict(result).items():
        print(f"{name:>14} {value:,.1f}" if isinstance(value, float) else f"{name:>14} {value:,}")
    print(f"{'ratio':>14} {result.beside / result.alone:.2f}")
    is_whole = result.completed == result.billed == result.lines
    if not is_whole or result.twice or result.lost or result.wrong:
        raise SystemExit("a line was lost, or is there twice")


class _Run:
    def __init__(self, folder: Path, lines: int, seconds: float) -> None:
        self._folder = folder
        self._texts = list(islice(texts(1), lines))
        self._seconds = seconds
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
            arguments=("--regions", "eu"),
        )

    def run(self, *, kill: bool) -> BatchResult:
        with self._system as system:
            alone = self._p95()
            batch = self._create()
            wait_until(lambda: self._done(batch) > 0, within=60.0, what="the batch runs")
            beside = self._p95()
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
        return self._judged(output, failed, took, alone, beside)

    def _p95(self) -> float:
        """Return the 95th percentile of new texts that somebody waits for."""
        target = Target(
            host="127.0.0.1",
            port=self._system.port,
            path=_PATH,
            headers=(("authorization", f"Bearer {self._system.key}"),),
        )
        bodies = (_body(text) for text in self._more)
        found = asyncio.run(open_loop(target, bodies, rate=_RATE, duration=self._seconds))
        latencies = sorted(answer.latency for answer in found if answer.status == httpx.codes.OK)
        return latencies[int(len(latencies) * 0.95)] * 1000

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
        self, output: Sequence[_Output], failed: int, took: float, alone: float, beside: float
    ) -> BatchResult:
        times = Counter(line["custom_id"] for line in output)
        checker = AnswerChecker(self._folder / "models")
        wrong = 0
        for line in output[:: max(1, len(output) // _CHECKED)]:
            body = msgspec.json.encode(line["response"]["body"])
            wrong += not checker.is_right(self._texts[int(line["custom_id"])], body)
        billed, items = _billed(self._folder / "data" / "ledger.db")
        return BatchResult(
            lines=len(self._texts),
            completed=len(times),
            failed=failed,
            twice=sum(count > 1 for count in times.values()),
            lost=len(self._texts) - len(times) - failed,
            wrong=wrong,
            billed=billed,
            billed_items=items,
            seconds=took,
            alone=alone,
            beside=beside,
        )


def _billed(ledger: Path) -> tuple[int, int]:
    """Return the requests of batches that the ledger has, and their items."""
    query = "SELECT SUM(requests), SUM(items) FROM usage_events WHERE batch = 1 AND status = 200"
    with closing(sqlite3.connect(ledger)) as connection:
        requests, items = connection.execute(query).fetchone()
    return int(requests or 0), int(items or 0)


def _body(text: str) -> bytes:
    return msgspec.json.encode({"model": MODEL, "input": text})
