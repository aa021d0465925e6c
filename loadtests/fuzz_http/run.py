"""Fuzzes a gateway of each kind over many connections, and checks its processes afterwards."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import uvloop

from loadtests.fuzz_http.callers import MAX_BODY_BYTES, MAX_ITEMS, Caller, callers
from loadtests.fuzz_http.client import Finding, ScriptRunner
from loadtests.fuzz_http.script import Script, script
from loadtests.fuzzing import MemoryWatch
from loadtests.gateway import WIDE_LIMITS, Gateway, one_backend, running_gateway
from testing.ports import free_port
from testing.stub_process import stub_process

MEMORY_BOUND = 256 * 1024 * 1024
"""Bytes that a process may have resident, whatever was sent to it."""
_CONNECTIONS = 48
_REQUESTS_A_CALL = 10
_ENOUGH = 10
_OVERLOADED = 503
# A busy machine may refuse this number or this share of all requests.
_REFUSED, _SHARE_REFUSED = 100, 0.01
_KINDS = {"fast": True, "application": False}
_SIGNS = ("unexpected failure", "Traceback", "ended unexpectedly")


class FuzzResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run; `memory` is the peak of each process, by its name."""

    seed: int
    requests: int
    connections: int
    seconds: float
    answers: dict[tuple[str, int], int]
    memory: dict[str, int]
    findings: list[Finding]
    trouble: list[str]
    """Faults of the processes after the run."""


CallSender = Callable[[Sequence[str], list[Caller], int], list[str]]
"""Sends a number of calls to gRPC listeners for the callers; returns the findings."""


class Traffic(msgspec.Struct, frozen=True):
    """The script of each connection, and the models that it needs."""

    script: Callable[..., Script] = script
    backend: str = "loadtests.fuzz_http.backend"
    """The module of the backend."""
    models: Mapping[str, object] = {}
    """The section of the document."""
    beside: CallSender | None = None
    """Sends a call for every tenth request, in threads of its own."""
    afterwards: Callable[[], list[str]] = list
    """Returns the faults that only all answers together show."""


HTTP = Traffic()


def fuzz(
    folder: Path,
    *,
    seed: int,
    requests: int,
    bound: float = 60.0,
    without: Container[str] = (),
    only: int | None = None,
    traffic: Traffic = HTTP,
) -> FuzzResult:
    """Send `requests` requests, or connection `only`, and return the result."""
    people = callers(seed)
    with contextlib.ExitStack() as stack:
        stub = stack.enter_context(stub_process(module=traffic.backend))
        gateways = [
            stack.enter_context(_gateway(folder / kind, stub.url, people, traffic, is_fast=is_fast))
            for kind, is_fast in _KINDS.items()
        ]
        run = _FuzzRun(seed, people, gateways, bound=bound, without=without, traffic=traffic)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run.run(requests, only=only))


class _FuzzRun:
    """Runs the connections, on both gateways in turn."""

    def __init__(
        self,
        seed: int,
        people: list[Caller],
        gateways: list[Gateway],
        *,
        bound: float,
        without: Container[str],
        traffic: Traffic,
    ) -> None:
        self._seed = seed
        self._traffic = traffic
        self._people = people
        self._gateways = gateways
        self._without = without
        self._players = [ScriptRunner(gateway.port, bound=bound) for gateway in gateways]
        self._findings: list[Finding] = []
        self._number = self._requests = 0

    async def run(self, requests: int, *, only: int | None) -> FuzzResult:
        """Return the result of the run."""
        started = time.monotonic()
        pids = self._pids()
        with MemoryWatch(pids) as watch:
            called = asyncio.create_task(self._call(requests if only is None else 0))
            if only is None:
                await asyncio.gather(*(self._play_on(requests) for _ in range(_CONNECTIONS)))
            else:
                await self._play(self._script(only))
            seconds = time.monotonic() - started
            trouble = [*await called, *await self._afterwards()]
        trouble += [*self._changed(pids, watch.most), *self._traffic.afterwards()]
        return FuzzResult(
            seed=self._seed,
            requests=self._requests,
            connections=self._number,
            seconds=seconds,
            answers=sum((player.answers for player in self._players), Counter()),
            memory=watch.most,
            findings=self._findings,
            trouble=trouble,
        )

    async def _play_on(self, requests: int) -> None:
        while self._requests < requests and len(self._findings) < _ENOUGH:
            played = self._script(self._number)
            self._number += 1
            self._requests += played.requests
            await self._play(played)

    async def _call(self, requests: int) -> list[str]:
        if self._traffic.beside is None or not requests:
            return []
        addresses = [f"127.0.0.1:{gateway.settings.grpc_port}" for gateway in self._gateways]
        return await asyncio.to_thread(
            self._traffic.beside, addresses, self._people, requests // _REQUESTS_A_CALL
        )

    async def _play(self, played: Script) -> None:
        script_runner = self._players[played.number % len(self._players)]
        try:
            finding = await script_runner.run_script(played)
        except OSError as error:
            finding = Finding(
                number=played.number, what=f"no connection: {error}", sent=b"", received=b""
            )
        if finding is not None:
            self._findings.append(finding)

    def _script(self, number: int) -> Script:
        return self._traffic.script(self._seed, number, self._people, without=self._without)

    def _pids(self) -> dict[str, int]:
        return {
            f"{kind} {name}": pid
            for kind, gateway in zip(_KINDS, self._gateways, strict=True)
            for name, pid in gateway.processes().items()
        }

    def _changed(self, pids: dict[str, int], memory: Mapping[str, int]) -> Iterator[str]:
        ended = (pair for player in self._players for pair in player.answers.items())
        refused = sum(count for (_, status), count in ended if status == _OVERLOADED)
        if refused > max(_REFUSED, self._requests * _SHARE_REFUSED):
            yield f"{refused} of {self._requests} requests were refused as too many"
        if self._pids() != pids:
            yield f"processes were replaced: {pids} before, {self._pids()} now"
        for name, most in memory.items():
            if most > MEMORY_BOUND:
                yield f"{name} took {most // 1024**2} MiB"
        for gateway in self._gateways:
            log = gateway.log()
            yield from (
                f"a log has `{sign}`: {_around(log, sign)}" for sign in _SIGNS if sign in log
            )

    async def _afterwards(self) -> list[str]:
        """Return the findings of plain requests after the run."""
        plain = [script(self._seed, -number, self._people, without=_ALL) for number in range(1, 81)]
        trouble = []
        # One that sends nothing would only wait until the server closes the connection.
        for played in (each for each in plain if each.requests):
            for script_runner in self._players:
                finding = await script_runner.run_script(played)
                if finding is not None:
                    trouble.append(f"afterwards: {finding.what}")
        return trouble


def _around(log: str, sign: str) -> str:
    at = log.index(sign)
    return log[max(0, at - 300) : at + 1500]


class _AllButPlain:
    """Every kind but the plainest."""

    def __contains__(self, name: object) -> bool:
        return name != "plain"


_ALL = _AllButPlain()


def _gateway(
    folder: Path, url: str, people: list[Caller], traffic: Traffic, *, is_fast: bool
) -> AbstractContextManager[Gateway]:
    """Return a gateway with two workers that knows the callers."""
    return running_gateway(
        folder,
        {
            **one_backend(url),
            "request": {"max_body_bytes": MAX_BODY_BYTES, "max_items": MAX_ITEMS},
            "limits": WIDE_LIMITS,
            "models": traffic.models,
        },
        keys={caller.tenant: caller.key for caller in people},
        workers=2,
        fast_lane=is_fast,
        grpc_port=free_port() if traffic.beside else 0,
    )
