"""Runs a stub backend as a process that can be killed or stopped.

`with stub_process(backend_id="eu-1") as stub: ... stub.process.kill()`
"""

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from testing.stub_backend import StubBackend

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
    module: str = "testing.stub_backend",
    behaviour: str = "answer",
) -> Iterator[StubProcess]:
    """Run a stub backend as a process while entered.

    The stub calls the function `behaviour` of `module` to answer. If the module has a function
    `models`, the stub serves the models that this function returns.
    """
    command = [sys.executable, "-m", "testing.stub_process", backend_id, region, module, behaviour]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_PROJECT) as process:
        try:
            assert process.stdout is not None
            yield StubProcess(url=process.stdout.readline().strip(), process=process)
        finally:
            process.kill()


async def _main(backend_id: str, region: str, module: str, behaviour: str) -> None:
    answers = importlib.import_module(module)
    async with StubBackend(
        backend_id=backend_id,
        region=region,
        models=answers.models() if hasattr(answers, "models") else None,
        behaviour=getattr(answers, behaviour),
    ) as stub:
        print(stub.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
