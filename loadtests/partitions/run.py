"""Runs partitions one after another over one gateway under load."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Self

import httpx
import msgspec
import psycopg

from gateway.ledger.ledger import Ledger
from gateway.sockets.tcp_keepalive import TcpKeepalive
from loadtests.chaos.load import LoadGenerator
from loadtests.faults.model import ModelOracle
from loadtests.partitions.cases import Direction, ProcessPair
from loadtests.partitions.members import ADMIN_KEY, MEMBERS, ProcessGroup
from loadtests.partitions.sampling import ResourceSampler
from testing.loopback import no_authorities
from testing.namespaces import NamespaceNetwork

QUIET = 1.0
_RATE, _HIT_RATE = 15.0, 5.0
_KNOWN = "a b c d e f g h"
_START = 120.0
RECOVERY_TIME = 60.0
_SOON = 0.1
_ASKED = 2.0


class PartitionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a case. Times are in seconds."""

    pair: str
    direction: Direction
    parted: float
    requests: int
    wrong: int
    unanswered: int
    failed: int
    codes: tuple[int, ...]
    failed_until: float
    """From the beginning of the fault to the last request, by when it was due, that failed; 0: none
    did."""
    slowest: float
    unbilled: int
    """Answers that the ledger does not have, or has too often."""
    unlogged: int
    well_after: float
    """From the end of the fault until everything was well, or all the time that it had."""
    waited_for: str
    """What was well last."""
    memory: dict[str, int]
    cpu: dict[str, float]
    died: tuple[str, ...]


class PartitionRun:
    """Runs partitions of a gateway in namespaces while entered.

    Each may take `recovery_time` seconds to be ready again, with everything billed and logged.
    """

    def __init__(
        self, folder: Path, *, keepalive: TcpKeepalive, recovery_time: float = RECOVERY_TIME
    ) -> None:
        self._stack = contextlib.AsyncExitStack()
        self._folder = folder
        self._keepalive = keepalive
        self._recovery_time = recovery_time
        self._answered: Counter[int] = Counter()
        self._seed = 0

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            self._network = stack.enter_context(NamespaceNetwork(MEMBERS))
            members = ProcessGroup(self._network, self._folder, self._keepalive)
            self._members = stack.enter_context(members)
            stack.enter_context(self._network.inside("client"))
            self._judge = ModelOracle([members.models])
            self._client = httpx.AsyncClient(timeout=_ASKED, verify=no_authorities())
            await stack.enter_async_context(self._client)
            await eventually(self._has_ledger, within=_START, what="PostgreSQL answers")
            (await asyncio.to_thread(Ledger.create, members.settings.ledger)).close()
            await asyncio.to_thread(members.start_gateway)
            await eventually(self._is_well, within=_START, what="the gateway is ready")
            members.equalize_priorities()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def case(
        self,
        *pairs: ProcessPair,
        direction: Direction,
        seconds: float,
        beside: Sequence[ProcessPair] = (),
    ) -> PartitionResult:
        """Part `pairs` at once for so many seconds, and return the result.

        Pairs `beside` them are parted in both directions.
        """
        clock = asyncio.get_running_loop().time
        watch = ResourceSampler(self._members.processes)
        async with self._load() as (misses, hits):
            await asyncio.sleep(QUIET)
            began = clock()
            async with watch:
                for pair in pairs:
                    pair.start_dropping(self._network, direction)
                for pair in beside:
                    pair.start_dropping(self._network, Direction.BOTH)
                await asyncio.sleep(seconds)
                self._network.restore_traffic()
                healed = clock()
                well_after, waited_for = await self._well_after(healed, (misses, hits))
        sent = [*misses.sent, *hits.sent]
        self._answered.update(each.status for each in sent)
        failed = [each for each in sent if each.status != httpx.codes.OK]
        return PartitionResult(
            pair="; ".join(pair.name for pair in (*pairs, *beside)),
            direction=direction,
            parted=seconds,
            requests=len(sent),
            wrong=sum(each.status == httpx.codes.OK and not each.is_right for each in sent),
            unanswered=sum(not each.status for each in sent),
            failed=len(failed),
            codes=tuple(sorted({each.status for each in failed})),
            failed_until=max((each.due - began for each in failed), default=0.0),
            slowest=max(each.latency for each in sent),
            unbilled=await self._settled(self._unbilled),
            unlogged=await self._settled(self._unlogged),
            well_after=well_after,
            waited_for=waited_for,
            memory=watch.memory,
            cpu=watch.cpu,
            died=tuple(sorted(watch.died)),
        )

    @contextlib.asynccontextmanager
    async def _load(self) -> AsyncIterator[tuple[LoadGenerator, LoadGenerator]]:
        """Send misses and hits at a steady rate."""
        self._seed += 1
        settings = self._members.settings
        misses = LoadGenerator(
            settings.port, self._judge, rate=_RATE, seed=self._seed, host=settings.host
        )
        hits = LoadGenerator(
            settings.port,
            self._judge,
            rate=_HIT_RATE,
            seed=-self._seed,
            repeat=_KNOWN,
            host=settings.host,
        )
        async with misses, hits:
            yield misses, hits

    async def _well_after(
        self, healed: float, loads: tuple[LoadGenerator, LoadGenerator]
    ) -> tuple[float, str]:
        """Wait until all is well and what was answered by then is billed and logged.

        Return the seconds since the fault ended, and what was well last.
        """
        clock = asyncio.get_running_loop().time
        before = sum(len(load.sent) for load in loads) + self._answered.total()

        waited_for = ""

        async def is_well() -> bool:
            nonlocal waited_for
            missing = await self._not_well()
            if not missing and (await self._billed()).total() < before:
                missing = "events to be billed"
            if not missing and await asyncio.to_thread(self._logged) < before:
                missing = "lines of the request log"
            waited_for = missing or waited_for
            return not missing

        with contextlib.suppress(TimeoutError):
            await eventually(is_well, within=self._recovery_time, what="everything is well")
            return clock() - healed, waited_for
        return self._recovery_time, waited_for

    async def _is_well(self) -> bool:
        return not await self._not_well()

    async def _not_well(self) -> str:
        """Return what is not ready of the two listeners, nothing when all is."""
        settings = self._members.settings
        for url in (
            f"http://{settings.host}:{settings.port}",
            f"http://{settings.admin_host}:{settings.admin_port}",
        ):
            try:
                answer = await self._client.get(f"{url}/health/ready")
            except httpx.HTTPError as error:
                return f"{url}: {type(error).__name__}"
            if answer.status_code != httpx.codes.OK or answer.json()["degraded"]:
                return f"{url}: {answer.text}"
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        try:
            answer = await self._client.get(f"{url}/admin/regions", headers=headers)
        except httpx.HTTPError as error:
            return f"{url}/admin/regions: {type(error).__name__}"
        return "" if answer.status_code == httpx.codes.OK else answer.text

    async def _settled(self, difference: Callable[[], Awaitable[int]]) -> int:
        """Return a difference once it is 0, or at the end of its time."""

        async def is_none() -> bool:
            return await difference() == 0

        with contextlib.suppress(TimeoutError):
            await eventually(is_none, within=self._recovery_time, what="nothing is missing")
        return await difference()

    async def _unbilled(self) -> int:
        """Return by how much the ledger differs from the answers, status by status."""
        billed = await self._billed()
        statuses = billed.keys() | self._answered.keys() - {0}
        return sum(abs(billed[status] - self._answered[status]) for status in statuses)

    async def _unlogged(self) -> int:
        answered = self._answered.total() - self._answered[0]
        return abs(await asyncio.to_thread(self._logged) - answered)

    async def _billed(self) -> Counter[int]:
        query = "select status, sum(requests)::bigint from usage_events group by status"
        async with await self._ledger() as connection:
            rows = await (await connection.execute(query)).fetchall()
        return Counter({int(status): int(count) for status, count in rows})

    async def _has_ledger(self) -> bool:
        try:
            async with await self._ledger() as connection:
                await connection.execute("select 1")
        except psycopg.OperationalError:
            return False
        return True

    async def _ledger(self) -> psycopg.AsyncConnection:
        address = self._network.address("ledger")
        return await psycopg.AsyncConnection.connect(
            host=address, user="tests", dbname="postgres", connect_timeout=2
        )

    def _logged(self) -> int:
        files = self._members.settings.data_dir.glob("requests.log*")
        return sum(file.read_bytes().count(b"\n") for file in files)


async def eventually(holds: Callable[[], Awaitable[bool]], *, within: float, what: str) -> None:
    """Return once `await holds()`.

    Raises:
        TimeoutError: it does not in so many seconds.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + within
    while not await holds():
        if clock() > deadline:
            raise TimeoutError(f"not within {within} s: {what}")
        await asyncio.sleep(_SOON)
