"""Checks the whole layout step by step and reports what held."""

import asyncio
import time
from collections.abc import Iterator, Sequence

import httpx
import msgspec

from loadtests.arena import topology
from loadtests.arena.podman import HOME, PodmanError, inspect
from loadtests.arena.run import prepare
from loadtests.arena.system import Arena, ArenaError, wait_until
from loadtests.arena.topology import PREFIX
from loadtests.compose.bringing_up import bring_up
from loadtests.compose.losses import Loss, losses
from loadtests.compose.releases import Release, tools_in
from loadtests.compose.restoring import restore_into_fresh_volumes
from loadtests.compose.run import Phase, is_answered, lose_each, rotate, upgrade
from testing.compose_files import OBSERVED

PHASES = ("losses", "rotation", "upgrade", "restore")
_HEALTHY = 90.0
_SEEN = 60.0
_TARGETS = 4
"""What Prometheus reads: two gateways and two backends."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A claim, what was seen of it, and whether it held."""

    claim: str
    seen: str
    is_so: bool


class LayoutCheck:
    """Runs the check: starts the former release, and ends with the present one restored."""

    def __init__(self, former: Release, present: Release) -> None:
        self._former = former
        self._present = present
        self._held: list[Held] = []
        self._phases: list[Phase] = []
        services = topology.services(files=OBSERVED)
        self._own = sorted({s.image for s in services.values() if _is_own(s.image)})
        started = {
            name: msgspec.structs.replace(each, image=former.image(each.image))
            if _is_own(each.image)
            else each
            for name, each in services.items()
        }
        self._arena = Arena(started)

    def run(
        self, phases: Sequence[str], *, requests: int, rate: float, only: Sequence[str]
    ) -> None:
        """Run the phases; stop at the first that cannot be run at all."""
        for image in self._own:
            found = list(tools_in(self._present.image(image)))
            self._note(f"{image} builds nothing", ", ".join(found) or "no tools", not found)
        try:
            self._start()
            expected = asyncio.run(prepare(self._arena))
            if "losses" in phases:
                chosen = chosen_losses(self._arena, only)
                self._add(lose_each(self._arena, expected, chosen, rate=rate, requests=requests))
            if "rotation" in phases:
                self._add(rotate(self._arena, expected, rate=rate))
            if "upgrade" in phases:
                self._add(upgrade(self._arena, expected, self._present, rate=rate))
            self._observe()
            if "restore" in phases:
                self._restore()
        except (ArenaError, PodmanError, httpx.HTTPError, OSError) as error:
            self._note("the check runs to its end", f"{type(error).__name__}: {error}", False)

    def findings(self) -> list[str]:
        """Return what did not hold."""
        claims = [f"{each.claim}: {each.seen}" for each in self._held if not each.is_so]
        return claims + [line for phase in self._phases for line in phase.findings()]

    def report(self) -> Iterator[str]:
        """Yield the lines of two tables: claims, and what callers saw of each loss and step."""
        yield from ("", "| claim | seen | |", "|---|---|---|")
        for each in self._held:
            yield f"| {each.claim} | {each.seen} | {'held' if each.is_so else 'NOT HELD'} |"
        for phase in self._phases:
            yield from _table(phase)

    def _start(self) -> None:
        for name in ("keys.json", "expected.json"):
            (HOME / name).unlink(missing_ok=True)
        topology.remove(volumes=True)
        seconds = bring_up(self._arena)
        self._note(
            f"healthy in {_HEALTHY:.0f} s",
            f"{len(self._arena.services)} containers in {seconds:.0f} s",
            seconds <= _HEALTHY,
        )

    def _add(self, phase: Phase) -> None:
        self._phases.append(phase)

    def _observe(self) -> None:
        """Look whether metrics and spans arrive."""
        url = self._address("prometheus", "9090") + "/api/v1/query"

        def up() -> int:
            found = httpx.get(url, params={"query": "up == 1"}, timeout=10.0).json()
            return len(found["data"]["result"])

        try:
            wait_until(lambda: up() >= _TARGETS, within=_SEEN, what="not every target is up")
        except (ArenaError, httpx.HTTPError) as error:
            self._note("Prometheus reads every target", str(error), False)
        else:
            self._note("Prometheus reads every target", f"{up()} are up", up() == _TARGETS)
        spans = httpx.get(self._address("otel-collector", "4318") + "/counted", timeout=10.0)
        if spans.is_success and spans.headers["content-type"] == "application/json":
            count = spans.json()["requests"]
            self._note("spans arrive at the collector", f"{count} exports", count > 0)
        else:
            self._note("the collector is a real one", "spans were not looked at", True)

    def _address(self, name: str, port: str) -> str:
        network = next(iter(self._arena.services[name].networks))
        address = inspect(self._arena.services[name].container).address[PREFIX + network]
        return f"http://{address}:{port}"

    def _restore(self) -> None:
        started = time.monotonic()
        differing = restore_into_fresh_volumes(self._arena)
        seen = ", ".join(differing) or f"equal, in {time.monotonic() - started:.0f} s"
        self._note("ledger, keys, tenants, configuration, state are restored", seen, not differing)
        accepted = is_answered(self._arena)
        self._note("keys are accepted after it", "all" if accepted else "not all", accepted)

    def _note(self, claim: str, seen: str, is_so: bool) -> None:  # noqa: FBT001 - a row's cells
        print(f"{claim}: {seen}", flush=True)
        self._held.append(Held(claim=claim, seen=seen, is_so=is_so))


def chosen_losses(arena: Arena, only: Sequence[str]) -> list[Loss]:
    """Return the losses of these names, or all.

    Raises:
        ArenaError: a name is none of theirs.
    """
    found = {each.name: each for each in losses(arena, topology.networks())}
    if unknown := set(only) - found.keys():
        raise ArenaError(f"nothing is named {', '.join(sorted(unknown))}: {', '.join(found)}")
    return [each for name, each in found.items() if not only or name in only]


def _is_own(image: str) -> bool:
    return image.startswith("localhost/")


def _table(phase: Phase) -> Iterator[str]:
    yield ""
    yield (
        f"| {phase.name} | seconds | requests | wrong | errors | when | allowed | outside"
        " | p99 ms meanwhile | |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for each in phase.episodes:
        seen = each.verdict
        when = f"{seen.errors_from:.1f} to {seen.errors_to:.1f} s" if seen.errors else "-"
        yield (
            f"| {each.name} | {each.took:.0f} | {seen.requests:,} | {seen.wrong} | {seen.errors}"
            f" | {when} | {each.window} | {seen.outside}"
            f" | {seen.p99_during * 1000:.0f} | {each.trouble or 'as it must'} |"
        )
    for each in phase.episodes:
        for said, times in each.verdict.codes.items():
            yield f"- {each.name}: {times} times {said}"
    books = phase.books
    total = sum(each.verdict.requests for each in phase.episodes)
    yield ""
    yield (
        f"{phase.name}: {total:,} requests, {books.answered:,} answered, {books.billed:,} billed,"
        f" {books.missing} missing, {books.twice} twice, {books.unanswered} billed without an"
        f" answer, {books.items_billed:,} items billed of {books.items_answered:,}."
    )
