"""Runs cases one after another on one running topology."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import httpx

from gateway.events.hit_run import ids_from
from loadtests.arena import judging, topology
from loadtests.arena.cases import Case
from loadtests.arena.faults import FAULTS, Fault
from loadtests.arena.images import built_from
from loadtests.arena.judging import SETTLED, LedgerComparison, LedgerEntry
from loadtests.arena.load import LoadGenerator, RequestOutcome
from loadtests.arena.memory import BOUNDS, MemorySampler
from loadtests.arena.podman import HOME, PodmanError
from loadtests.arena.questions import ExpectedAnswers, every_text
from loadtests.arena.record import Result, ResultFile
from loadtests.arena.system import Arena, ArenaError
from loadtests.arena.topology import BALANCER_PORT

_LEAD = 10.0
_AFTER = 10.0
"""Seconds of load before the fault, and after everything must be well."""
_FASTEST = 120.0
"""Requests a second, by default at most: two cores are to have some rest."""
_LEDGER = 60.0
_ITEMS_AT_ONCE = 60


def run_cases(
    arena: Arena, chosen: Sequence[Case], record: ResultFile, *, requests: int, rate: float
) -> None:
    """Run the chosen cases, print each result and store it."""
    expected = asyncio.run(prepare(arena))
    keys = arena.keys()
    commit = built_from()
    for number, case in enumerate(chosen):
        _restore(arena)
        fault = FAULTS[case.fault](arena, arena.services[case.service])
        duration = _LEAD + fault.hold + SETTLED + _AFTER
        steady = rate or min(_FASTEST, requests / duration)
        seed = int(time.time()) + number
        load = LoadGenerator(
            BALANCER_PORT, keys=keys, expected=expected, rate=steady, count=requests, seed=seed
        )
        result = asyncio.run(_run(arena, case, fault, load, steady, commit))
        record.add(result)
        verdict = result.verdict
        print(
            f"{case.name}: {verdict.requests} requests, {verdict.wrong} wrong,"
            f" {verdict.errors} errors {verdict.codes or ''} (allowed: {case.window});"
            f" {'; '.join(result.findings) or 'as it must'}",
            flush=True,
        )


def _restore(arena: Arena) -> None:
    """Recreate containers that an earlier case left unhealthy, which is a finding of that case."""
    try:
        arena.until_healthy(list(arena.services))
    except ArenaError as error:
        unwell = [arena.services[name] for name in arena.unhealthy()]
        print(f"{error}: made anew by hand: {', '.join(each.name for each in unwell)}")
        for service in unwell:
            topology.discard(service)
            topology.start(service)
        arena.until_healthy(list(arena.services))


async def prepare(arena: Arena) -> ExpectedAnswers:
    """Return the expected answer to every question, asked twice without a fault.

    Raises:
        ArenaError: something fails all the same.
    """
    path = HOME / "expected.json"
    known = ExpectedAnswers.read(path)
    if known is not None:
        return known
    expected = ExpectedAnswers({})
    headers = {"authorization": f"Bearer {arena.keys()[0]}", "cache-control": "no-cache"}
    url = f"http://127.0.0.1:{BALANCER_PORT}"
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60.0) as client:
        for (route, model), texts in every_text().items():
            for start in [*range(0, len(texts), _ITEMS_AT_ONCE)] * 2:
                part = texts[start : start + _ITEMS_AT_ONCE]
                answer = await client.post(route, json={"model": model, "input": part})
                if not answer.is_success:
                    raise ArenaError(f"{route} answers {answer.status_code} before any fault")
                expected.add(route, model, part, answer.content)
    expected.write(path)
    return expected


async def _run(
    arena: Arena, case: Case, fault: Fault, load: LoadGenerator, rate: float, commit: str
) -> Result:
    loop = asyncio.get_running_loop()
    started = time.time()
    with MemorySampler(arena) as watch:
        async with load:
            await asyncio.sleep(_LEAD)
            begun = loop.time() - load.started
            stuck = await _inject(fault)
            ended = loop.time() - load.started
            await asyncio.sleep(SETTLED)
            unhealthy = await asyncio.to_thread(arena.unhealthy)
            before = await asyncio.to_thread(_requests, arena)
            await asyncio.sleep(_AFTER)
            after = await asyncio.to_thread(_requests, arena)
            await load.finish()
    idle = [name for name, count in after.items() if count <= before.get(name, 0.0)]
    books, settled = await asyncio.to_thread(compare_with_ledger, arena, load.sent, started)
    verdict = judging.judge(load.sent, case.window, begun=begun, ended=ended)
    around = judging.CaseObservations(
        unhealthy=unhealthy,
        memory=dict(watch.largest),
        bounds=BOUNDS,
    )
    found = judging.findings(verdict, books, around)
    return Result(
        case=case.name,
        commit=commit,
        time=started,
        rate=rate,
        begun=begun,
        ended=ended,
        window=str(case.window),
        verdict=verdict,
        books=books,
        ledger_settled=settled,
        memory=dict(watch.largest),
        findings=[*found, *stuck, *(f"{name} is given no requests" for name in idle)],
    )


def _requests(arena: Arena) -> dict[str, float]:
    """Return how many requests each gateway answered, leaving out unreachable ones."""
    try:
        return arena.requests()
    except (httpx.HTTPError, PodmanError, KeyError):
        return {}


async def _inject(fault: Fault) -> list[str]:
    """Inject a fault, keep it up for its time, undo it; return the steps that failed."""
    loop = asyncio.get_running_loop()
    problems = []

    async def do(what: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(what)
        except (ArenaError, PodmanError) as error:
            problems.append(str(error))

    await do(fault.begin)
    until = loop.time() + fault.hold
    while (left := until - loop.time()) > 0:
        await asyncio.sleep(min(1.0, left))
        await do(fault.keep)
    await do(fault.end)
    return problems


class _AsksLedger(Protocol):
    def ask_ledger(self, query: str) -> list[list[str]]: ...


def compare_with_ledger(
    arena: _AsksLedger, sent: list[RequestOutcome], started: float
) -> tuple[LedgerComparison, float]:
    """Compare answers with the ledger once it has them all, or after a minute."""

    def look() -> LedgerComparison:
        ledger, items = _ledger(arena, started)
        return judging.compare(sent, ledger, items)

    return judging.wait_for_ledger(look, within=_LEDGER)


def _ledger(arena: _AsksLedger, started: float) -> tuple[dict[str, LedgerEntry], int]:
    """Return the ledger's requests since `started`, and the items answered."""
    since = int(started * 1e9)
    query = f"SELECT id, requests, status, items, failed FROM usage_events WHERE time >= {since}"  # noqa: S608
    times: Counter[str] = Counter()
    status: dict[str, int] = {}
    items = 0
    for first, count, answered, counted, failed in arena.ask_ledger(query):
        for one in ids_from(first, int(count)):
            times[one] += 1
            status[one] = int(answered)
        if int(answered) == httpx.codes.OK:
            items += int(counted) - int(failed)
    found = {one: LedgerEntry(times=count, status=status[one]) for one, count in times.items()}
    return found, items
