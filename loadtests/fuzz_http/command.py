"""Sends valid, unusual and invalid HTTP requests to real gateways."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # Any: sections of a document

import click
import uvloop

from loadtests.fuzz_dialects import backend
from loadtests.fuzz_http.bodies import Caller, callers
from loadtests.fuzz_http.expect import OVERLOADED
from loadtests.fuzz_http.requests import MAX_BODY_BYTES, MAX_ITEMS
from loadtests.fuzz_http.script import Script, plain_script, run_script, script
from loadtests.fuzzing import MemoryWatch, end_with, print_answers, seeded_run
from loadtests.gateway import WIDE_LIMITS, Gateway, one_backend, running_gateway
from loadtests.options import only, seed
from testing.ports import free_port
from testing.stub_process import stub_process

_MEMORY_BOUND = 256 * 1024 * 1024
"""The most bytes that a process may have resident, whatever was sent to it."""
_CONNECTIONS = 48
_CONNECTIONS_AFTERWARDS = 80
_REQUESTS_A_CALL = 10
_ENOUGH = 10
# On a busy machine, the gateway may refuse this number of requests or this share of all requests,
# whichever is larger.
_REFUSED, _SHARE_REFUSED = 100, 0.01
_SIGNS = ("unexpected failure", "Traceback", "ended unexpectedly")


class Traffic:
    """Makes the scripts of HTTP requests. Subclasses make other traffic."""

    name = "http"

    def script(self, seed: int, number: int, people: list[Caller]) -> Script:
        """Return the script of connection `number`."""
        return script(seed, number, people)

    def call(self, address: str, people: list[Caller], calls: int) -> list[str]:
        """Send a number of calls to the gRPC listener in threads; return the findings."""
        return []

    def afterwards(self) -> list[str]:
        """Return the findings that can only be made after all answers of the run."""
        return []


class FuzzRun:
    """A run on a gateway, and its findings."""

    def __init__(self, seed: int, people: list[Caller], gateway: Gateway, traffic: Traffic) -> None:
        self._seed = seed
        self._traffic = traffic
        self._people = people
        self._gateway = gateway
        self.answers: Counter[tuple[str, int]] = Counter()
        self.findings: list[str] = []
        self.memory: dict[str, int] = {}
        """The most bytes that each process had resident."""
        self.connections = self.requests = 0

    async def run(self, requests: int, only: int | None) -> None:
        """Send `requests` requests, or only connection `only`, and check the processes."""
        pids = self._gateway.processes()
        with MemoryWatch(pids) as watch:
            if only is None:
                calls = requests // _REQUESTS_A_CALL
                address = f"127.0.0.1:{self._gateway.settings.grpc_port}"
                async with asyncio.TaskGroup() as group:
                    call = asyncio.to_thread(self._traffic.call, address, self._people, calls)
                    called = group.create_task(call)
                    for _ in range(_CONNECTIONS):
                        group.create_task(self._play_many(requests))
                self.findings += called.result()
            else:
                await self._play(self._traffic.script(self._seed, only, self._people))
            for number in range(_CONNECTIONS_AFTERWARDS):
                played = plain_script(self._seed, number, self._people)
                if found := await run_script(played, self._gateway.port, self.answers):
                    self.findings.append(f"afterwards: {found}")
        self.memory = watch.most
        self.findings += [*self._faults(pids), *self._traffic.afterwards()]

    async def _play_many(self, requests: int) -> None:
        while self.requests < requests and len(self.findings) < _ENOUGH:
            played = self._traffic.script(self._seed, self.connections, self._people)
            self.connections += 1
            self.requests += played.size
            await self._play(played)

    async def _play(self, played: Script) -> None:
        if found := await run_script(played, self._gateway.port, self.answers):
            again = f"ARGS='--seed {self._seed} --only {played.number}'"
            self.findings.append(f"make fuzz NAME={self._traffic.name} {again}: {found}")

    def _faults(self, pids: dict[str, int]) -> Iterator[str]:
        """Yield what is wrong with the processes."""
        refused = sum(count for (_, status), count in self.answers.items() if status == OVERLOADED)
        if refused > max(_REFUSED, self.requests * _SHARE_REFUSED):
            yield f"{refused} of {self.requests} requests were refused as too many"
        if (now := self._gateway.processes()) != pids:
            yield f"processes were replaced: {pids} before, {now} now"
        for name, most in self.memory.items():
            if most > _MEMORY_BOUND:
                yield f"{name} took {most // 1024**2} MiB"
        log = self._gateway.log()
        for sign in _SIGNS:
            if sign in log:
                at = log.index(sign)
                yield f"a log has `{sign}`: {log[max(0, at - 300) : at + 1500]}"


def document_of(url: str) -> dict[str, Any]:
    """Return the configuration document of a gateway under test, with the backend at `url`."""
    return {
        **one_backend(url),
        "request": {"max_body_bytes": MAX_BODY_BYTES, "max_items": MAX_ITEMS},
        "limits": WIDE_LIMITS,
        "models": backend.DOCUMENT_MODELS,
    }


def fuzz(
    folder: Path,
    traffic: Traffic,
    *,
    seed: int,
    requests: int,
    only: int | None = None,
    workers: int = 2,
) -> FuzzRun:
    """Send `requests` requests, or only connection `only`, and return the run."""
    people = callers(seed)
    with (
        stub_process(module=backend.__name__) as stub,
        running_gateway(
            folder / "gateway",
            document_of(stub.url),
            keys={caller.tenant: caller.key for caller in people},
            workers=workers,
            batches=False,
            # On a machine that is busy enough, Redis needs longer than the default timeout.
            state_timeout=60.0,
            grpc_port=free_port(),
        ) as gateway,
    ):
        run = FuzzRun(seed, people, gateway, traffic)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run.run(requests, only))
        return run


@click.command("fuzz-http")
@click.option("--requests", default=1_000_000)
@seed
@only
def fuzz_http_command(*, requests: int, seed: int | None, only: int | None) -> None:
    """Send valid, unusual and invalid requests; find mixed-up answers, hangs and crashes."""
    run_and_show(Traffic(), requests=requests, seed=seed, only=only)


def run_and_show(traffic: Traffic, *, requests: int, seed: int | None, only: int | None) -> None:
    """Run the fuzzer, print the result, and fail if anything was found."""
    started = time.monotonic()
    with seeded_run(seed) as (folder, chosen):
        done = fuzz(folder, traffic, seed=chosen, requests=requests, only=only)
    took = time.monotonic() - started
    click.echo(f"{done.requests} requests on {done.connections} connections in {took:.0f} s")
    print_answers(done.answers)
    click.echo(f"\nmost resident, in MiB (bound {_MEMORY_BOUND // 1024**2}):")
    for name, most in sorted(done.memory.items()):
        click.echo(f"  {name}: {most // 1024**2}")
    end_with(done.findings)
