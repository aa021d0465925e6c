"""Runs `sluicegate gateway` as a process: one of several machines on one Redis and ledger."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import process_environment
from testing.ports import free_port
from testing.raw_http import KEY
from testing.stub_process import StubProcess
from testing.waiting import until
from tests.support.worker import write_document


class GatewayProcess:
    """A gateway of one worker that serves on `host` and `port` while it is entered."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        redis: str,
        stub: StubProcess,
        host: str,
        port: int,
        **environment: str,
    ) -> None:
        self.host = host
        self._output = folder / f"{name}.out"
        config = folder / "config"
        self._environment = dict(process_environment()) | {
            "SLUICEGATE_DATA_DIR": str(folder / name),
            "SLUICEGATE_CONFIG": str(config),
            "SLUICEGATE_CACHE_URL": redis,
            "SLUICEGATE_STATE_URL": redis,
            "SLUICEGATE_LEDGER_URL": f"sqlite:///{folder / 'ledger.db'}",
            "SLUICEGATE_SECRET": "shared by the gateways of a test",
            "SLUICEGATE_HOST": host,
            "SLUICEGATE_PORT": str(port),
            "SLUICEGATE_ADMIN_PORT": str(free_port()),
            "SLUICEGATE_BATCHES": "false",
            **environment,
        }
        if not config.exists():
            write_document(config, [("eu-1", "eu", stub.url)], {})
            with Ledger.create(f"sqlite:///{folder / 'ledger.db'}") as ledger:
                ledger.accounts.create_tenant("acme")
                ledger.accounts.create_key("acme", key_hash=hash_key(KEY))
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self._output.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    "sluicegate.gateway",
                    "gateway",
                    "--workers",
                    "1",
                    "--no-admin",
                ),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        try:
            await until(
                lambda: "serving on" in self.output() or not self.is_running(),
                within=240,
                what="a gateway that serves",
            )
            assert self.is_running(), self.output()
        except BaseException:  # also when the test's own time limit ends the wait
            await self._kill()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self.is_running():
            self.signal(signal.SIGINT)
            try:
                await until(lambda: not self.is_running(), within=240, what="the end of a gateway")
            finally:
                await self._kill()

    def output(self) -> str:
        """Return what it printed."""
        return self._output.read_text(errors="replace")

    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return self._process is not None and self._process.returncode is None

    async def _kill(self) -> None:
        """Kill the supervisor if it runs; the kernel then ends its worker."""
        assert self._process is not None
        if self.is_running():
            self._process.kill()
        await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send the supervisor a signal."""
        assert self._process is not None
        os.kill(self._process.pid, number)
