"""Runs a stub backend as a process that can be killed or stopped.

`with stub_process(backend_id="eu-1") as stub: ... stub.process.kill()`
"""

import argparse
import asyncio
import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from testing.stub_backend import StubBackend, answer_after

_PROJECT = Path(__file__).parents[1]


class StubProcess(msgspec.Struct, frozen=True):
    """A stub backend in a separate process."""

    url: str
    process: subprocess.Popen[str]


@contextmanager
def stub_process(
    *,
    backend_id: str = "stub",
    region: str = "eu",
    service_time: float = 0.0,
    certificate: Path | None = None,
    module: str = "testing.stub_backend",
) -> Iterator[StubProcess]:
    """Run a stub backend in a process that ends with the context; with a certificate, over TLS.

    It answers by `answer` of a module, for its `models()` if there are any.
    """
    command = [sys.executable, "-m", "testing.stub_process", backend_id, region]
    command += [f"--service-time={service_time}", f"--module={module}"]
    command += [f"--certificate={certificate}"] if certificate else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_PROJECT) as process:
        try:
            assert process.stdout is not None
            yield StubProcess(url=process.stdout.readline().strip(), process=process)
        finally:
            process.kill()


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend_id")
    parser.add_argument("region")
    parser.add_argument("--service-time", type=float, default=0.0)
    parser.add_argument("--certificate", type=Path)
    parser.add_argument("--module")
    options = parser.parse_args()
    module = importlib.import_module(options.module)
    stub = StubBackend(
        backend_id=options.backend_id,
        region=options.region,
        models=module.models() if hasattr(module, "models") else None,
        behaviour=answer_after(options.service_time) if options.service_time else module.answer,
        certificate=options.certificate,
    )
    async with stub:
        print(stub.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
