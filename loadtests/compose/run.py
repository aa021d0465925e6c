"""Sends load while parts of the layout are lost, and while all of it is upgraded."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

import httpx
import msgspec

from loadtests.arena.judging import LedgerComparison, Verdict, Window, judge
from loadtests.arena.load import LoadGenerator, RequestOutcome
from loadtests.arena.podman import PodmanError
from loadtests.arena.questions import ExpectedAnswers
from loadtests.arena.run import compare_with_ledger
from loadtests.arena.system import Arena, ArenaError
from loadtests.arena.topology import BALANCER_PORT
from loadtests.compose import rotation
from loadtests.compose.losses import HOLD, Loss
from loadtests.compose.releases import Release
from loadtests.compose.upgrade import steps

_BEFORE = 2.0
_AFTER = 8.0
"""Seconds of load before a loss begins, and after everything is back."""
_ERRORS = 0.001
"""The share of requests outside of windows that may fail."""
LONGEST = 90.0
"""Seconds that a loss or a step may take, and with it an open window."""


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One loss or one step of an upgrade, and what callers saw from it until the next."""

    name: str
    took: float
    """Seconds until all was healthy again."""
    window: str
    verdict: Verdict
    trouble: str = ""
    """What failed in the layout itself."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Several episodes under one load, and the ledger after them."""

    name: str
    episodes: list[Episode]
    books: LedgerComparison
    errors_allowed: float
    """The share of requests outside of windows that may fail."""

    def findings(self) -> list[str]:
        """Return every violation of what must hold."""
        requests = sum(each.verdict.requests for each in self.episodes)
        outside = sum(each.verdict.outside for each in self.episodes)
        wrong = sum(each.verdict.wrong for each in self.episodes)
        found = [f"{wrong} wrong answers"] if wrong else []
        found = [f"{self.name}: {line}" for line in (*found, *self.books.findings())]
        if not self.episodes:
            found.append(f"{self.name}: nothing was lost or replaced")
        if outside > requests * self.errors_allowed:
            found.append(f"{self.name}: {outside} of {requests} failed outside of windows")
        found += [
            f"{self.name}: {each.name}: took {each.took:.0f} s"
            for each in self.episodes
            if each.took > LONGEST
        ]
        return found + [f"{self.name}: {e.name}: {e.trouble}" for e in self.episodes if e.trouble]


class Traffic:
    """Sends a steady load through the balancer and divides its outcomes into episodes."""

    def __init__(
        self, arena: Arena, expected: ExpectedAnswers, *, rate: float, requests: int
    ) -> None:
        self._arena = arena
        self._started = time.time()
        self._episodes: list[tuple[str, float, float, Window, str]] = []
        self.load = LoadGenerator(
            BALANCER_PORT,
            keys=arena.keys(),
            expected=expected,
            rate=rate,
            count=requests,
            seed=int(self._started),
        )

    async def lose(self, each: Loss) -> None:
        """Take one part away for its time, and wait until everything is well again."""
        await asyncio.sleep(_BEFORE)
        await self._episode(each.name, [each.begin, None, each.end], each.window)
        await asyncio.sleep(_AFTER)

    async def replace(self, name: str, act: Callable[[], None]) -> None:
        """Replace one part."""
        await self._episode(name, [act], Window())
        await asyncio.sleep(_BEFORE)

    async def _episode(
        self, name: str, acts: Iterable[Callable[[], None] | None], window: Window
    ) -> None:
        begun, trouble = self._now(), ""
        for act in acts:
            if act is None:
                await asyncio.sleep(HOLD)
                continue
            try:
                await asyncio.to_thread(act)
            except (ArenaError, PodmanError, OSError) as error:
                trouble = str(error)
        ended = self._now()
        self._episodes.append((name, begun, ended, window, trouble))
        print(f"  {name}: {ended - begun:.1f} s {trouble}", flush=True)

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self.load.started

    def judged(self, name: str, *, errors_allowed: float) -> Phase:
        """Judge everything that was sent, and compare it with the ledger."""
        starts = [0.0, *(begun for _, begun, *_ in self._episodes[1:]), float("inf")]
        episodes = []
        for number, (part, begun, ended, window, trouble) in enumerate(self._episodes):
            own = _between(self.load.sent, starts[number], starts[number + 1])
            verdict = judge(own, window, begun=begun, ended=ended)
            episodes.append(
                Episode(
                    name=part,
                    took=ended - begun,
                    window=str(window),
                    verdict=verdict,
                    trouble=trouble,
                )
            )
        books, _ = compare_with_ledger(self._arena, self.load.sent, self._started)
        return Phase(name=name, episodes=episodes, books=books, errors_allowed=errors_allowed)


def lose_each(
    arena: Arena, expected: ExpectedAnswers, parts: Sequence[Loss], *, rate: float, requests: int
) -> Phase:
    """Take each part away under load."""

    async def run() -> Traffic:
        traffic = Traffic(arena, expected, rate=rate, requests=requests)
        async with traffic.load:
            for part in parts:
                await traffic.lose(part)
            await traffic.load.finish()
        return traffic

    return asyncio.run(run()).judged("losses", errors_allowed=_ERRORS)


def upgrade(
    arena: Arena,
    expected: ExpectedAnswers,
    release: Release,
    *,
    rate: float,
) -> Phase:
    """Replace each part under load; no request may fail."""

    async def run() -> Traffic:
        traffic = Traffic(arena, expected, rate=rate, requests=0)
        loop = asyncio.get_running_loop()

        def move(port: int) -> None:
            loop.call_soon_threadsafe(traffic.load.move, port)

        async with traffic.load:
            for name, act in steps(arena, release, move):
                await traffic.replace(name, act)
            await traffic.load.finish()
        return traffic

    return asyncio.run(run()).judged("upgrade", errors_allowed=0.0)


def rotate(arena: Arena, expected: ExpectedAnswers, *, rate: float) -> Phase:
    """Rotate the secrets under load; no request may fail."""

    async def run() -> Traffic:
        traffic = Traffic(arena, expected, rate=rate, requests=0)
        async with traffic.load:
            for name, act in rotation.steps(arena):
                await traffic.replace(name, act)
            await traffic.load.finish()
        return traffic

    return asyncio.run(run()).judged("rotation", errors_allowed=0.0)


def is_answered(arena: Arena) -> bool:
    """Return whether every key that was made before is accepted."""
    url = f"http://127.0.0.1:{BALANCER_PORT}/v1/models"
    keys = arena.keys()
    headers = [{"authorization": f"Bearer {key}"} for key in keys]
    return all(httpx.get(url, headers=each, timeout=30.0).is_success for each in headers)


def _between(sent: Sequence[RequestOutcome], start: float, end: float) -> list[RequestOutcome]:
    return [each for each in sent if start <= each.due < end]
