"""Fuzzes a gateway of each kind over many connections and checks what is left behind."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import uvloop

from gateway.auth.keys import hash_key
from gateway.ledger.ledger import Ledger
from loadtests.fuzz_http.backend import backend
from loadtests.fuzz_http.callers import MAX_BODY_BYTES, MAX_ITEMS, Caller, callers
from loadtests.fuzz_http.client import Finding, ScriptRunner
from loadtests.fuzz_http.script import Script, script
from loadtests.gateway import Gateway
from loadtests.process_resources import resources_of
from testing.ports import free_port
from testing.valkey import Valkey

MEMORY_BOUND = 256 * 1024 * 1024
"""Bytes that a process may have resident, whatever was sent to it."""
_CONNECTIONS = 48
_REQUESTS_A_CALL = 10
_ENOUGH = 10
_OVERLOADED = 503
# So many, or such a share of all, may be refused while the machine is busy otherwise.
_REFUSED, _SHARE_REFUSED = 100, 0.01
_LOOK = 1.0
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
    """What is wrong with the processes afterwards."""


CallSender = Callable[[Sequence[str], list[Caller], int], list[str]]
"""Sends so many calls to gRPC listeners for the callers; returns what was wrong."""


class Traffic(msgspec.Struct, frozen=True):
    """What is sent: the script of each connection, and what models it needs."""

    script: Callable[..., Script] = script
    backend: str = "loadtests.fuzz_http.backend"
    """The module of the backend."""
    models: Mapping[str, object] = {}
    """The section of the document."""
    beside: CallSender | None = None
    """Sends a call for every tenth request, in threads of its own."""
    afterwards: Callable[[], list[str]] = list
    """Returns what is wrong with all answers together."""


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
    """Send so many requests, or connection `only`, and return the result."""
    people = callers(seed)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(backend("fuzz-1", traffic.backend))
        gateways = [
            stack.enter_context(
                _gateway(folder / kind, url, people, fast_lane=fast, traffic=traffic)
            )
            for kind, fast in (("fast", True), ("application", False))
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
        self._memory: dict[str, int] = {}
        self._number = self._requests = 0

    async def run(self, requests: int, *, only: int | None) -> FuzzResult:
        """Return the result of the run."""
        started = time.monotonic()
        pids = self._pids()
        watching = asyncio.create_task(self._watch(pids))
        called = asyncio.create_task(self._call(requests if only is None else 0))
        if only is None:
            await asyncio.gather(*(self._play_on(requests) for _ in range(_CONNECTIONS)))
        else:
            await self._play(self._script(only))
        watching.cancel()
        seconds = time.monotonic() - started
        trouble = [*await called, *await self._afterwards(), *self._changed(pids)]
        trouble += self._traffic.afterwards()
        answers: dict[tuple[str, int], int] = {}
        for script_runner in self._players:
            for kind, count in script_runner.answers.items():
                answers[kind] = answers.get(kind, 0) + count
        return FuzzResult(
            seed=self._seed,
            requests=self._requests,
            connections=self._number,
            seconds=seconds,
            answers=answers,
            memory=self._memory,
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

    @property
    def _refused(self) -> int:
        return sum(
            count
            for script_runner in self._players
            for (_, status), count in script_runner.answers.items()
            if status == _OVERLOADED
        )

    async def _watch(self, pids: dict[str, int]) -> None:
        while True:
            self._look(pids)
            await asyncio.sleep(_LOOK)

    def _look(self, pids: dict[str, int]) -> None:
        for name, pid in pids.items():
            memory = resources_of(pid).get("memory", 0)
            self._memory[name] = max(memory, self._memory.get(name, 0))

    def _pids(self) -> dict[str, int]:
        return {
            f"{kind} {name}": pid
            for kind, gateway in zip(("fast", "application"), self._gateways, strict=True)
            for name, pid in gateway.processes().items()
        }

    def _changed(self, pids: dict[str, int]) -> Iterator[str]:
        self._look(pids)
        if self._refused > max(_REFUSED, self._requests * _SHARE_REFUSED):
            yield f"{self._refused} of {self._requests} requests were refused as too many"
        if self._pids() != pids:
            yield f"processes were replaced: {pids} before, {self._pids()} now"
        for name, most in self._memory.items():
            if most > MEMORY_BOUND:
                yield f"{name} took {most // 1024**2} MiB"
        for gateway in self._gateways:
            log = gateway.log()
            yield from (
                f"a log has `{sign}`: {_around(log, sign)}" for sign in _SIGNS if sign in log
            )

    async def _afterwards(self) -> list[str]:
        """Return what is wrong with plain requests after the run."""
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


@contextlib.contextmanager
def _gateway(
    folder: Path,
    url: str,
    people: list[Caller],
    *,
    fast_lane: bool,
    traffic: Traffic,
) -> Iterator[Gateway]:
    """Run a gateway with two workers that knows the callers."""
    document = {
        "regions": [{"name": "eu", "pools": [{"backends": [{"id": "fuzz-1", "url": url}]}]}],
        "request": {"max_body_bytes": MAX_BODY_BYTES, "max_items": MAX_ITEMS},
        "limits": {"tenant": [{"name": "m", "unit": "requests", "capacity": 10**9, "window": 60}]},
        "models": traffic.models,
    }
    with contextlib.ExitStack() as stack:
        cache, state = (stack.enter_context(Valkey()) for _ in range(2))
        gateway = Gateway(
            folder,
            document,
            workers=2,
            cache_url=cache.url,
            state_url=state.url,
            fast_lane=fast_lane,
            grpc_port=free_port() if traffic.beside else 0,
        )
        with Ledger.create(gateway.settings.ledger) as ledger:
            for caller in people:
                ledger.accounts.create_tenant(caller.tenant)
                ledger.accounts.create_key(caller.tenant, key_hash=hash_key(caller.key))
        yield stack.enter_context(gateway)
