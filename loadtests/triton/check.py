"""Checks a real Triton as a region: equal answers, faults under load, cost of the wire."""

import asyncio
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec

from backends.model_tools.demo.build import build_demo_models
from loadtests.faults.processes import Processes
from loadtests.machine import this_machine
from loadtests.triton.fleet import (
    ENCODER,
    OURS,
    THEIRS,
    WIDTH,
    AnswerDifference,
    FaultLoadResult,
    backend_of,
    compare,
    fleet,
    load,
    of_backend,
    through_gateway,
)
from loadtests.triton.process import Triton
from loadtests.triton.wire import BackendThroughput, WireCost, measure_backends, measure_wire
from loadtests.workload import sentences

_RETURNED = 30.0
_ROUNDS, _DURATION = 3, 4.0


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. `batches` are Triton's, `rows` those of either backend."""

    difference: AnswerDifference
    batches: int
    rows: dict[str, float]
    killed: FaultLoadResult
    back_after: float
    stopped: FaultLoadResult


class AnswersDiffer(Exception):
    """Answers through Triton are not those of our own executor, or some are missing."""


async def run_checks(
    folder: Path, models: Path, *, texts: int, rate: float, quiet: float, away: float
) -> CheckResult:
    """Ask for `texts` answers; then load, with Triton killed and stopped for `away` seconds each.

    Raises:
        AnswersDiffer: some answer is wrong or missing, or Triton had no part in them.
    """
    scratch = folder / "triton"
    scratch.mkdir()
    graph = models / ENCODER / "1" / "model.onnx"
    with Triton(scratch, name=ENCODER, graph=graph, width=WIDTH) as triton:
        async with fleet(folder, models, triton) as system:
            asked = sentences(texts, seed=40)
            before = triton.runs()
            found = await through_gateway(system, asked)
            batches = triton.runs() - before
            rows = {n: backend_of(system, n).counter("rows_total", ENCODER) for n in (THEIRS, OURS)}
            expected = await of_backend(backend_of(system, OURS), asked)
            others = iter(sentences(20_000, seed=41))
            killed, back_after = await _killed(system, triton, others, rate, quiet, away)
            stopped = await _stopped(system, triton, others, rate, quiet, away)
    shown = CheckResult(
        difference=compare(found, expected),
        batches=batches,
        rows=rows,
        killed=killed,
        back_after=back_after,
        stopped=stopped,
    )
    _judge(shown)
    return shown


async def _killed(
    system: Processes,
    triton: Triton,
    texts: Iterator[str],
    rate: float,
    quiet: float,
    away: float,
) -> tuple[FaultLoadResult, float]:
    back_after = 0.0

    async def inject_fault() -> None:
        nonlocal back_after
        await asyncio.sleep(quiet)
        await asyncio.to_thread(triton.kill)
        await asyncio.sleep(away)
        await asyncio.to_thread(triton.start)
        started = time.perf_counter()
        before = await asyncio.to_thread(triton.runs)
        # Cost and agreement of each encoder are measured anew where it was found missing.
        while await asyncio.to_thread(triton.runs) <= before:
            if time.perf_counter() - started > _RETURNED:
                raise AnswersDiffer("Triton returned, and nothing is sent there")
            await asyncio.sleep(0.05)
        back_after = time.perf_counter() - started

    duration = 2 * quiet + away + 6
    return await load(
        system, texts, rate=rate, duration=duration, meanwhile=inject_fault
    ), back_after


async def _stopped(
    system: Processes,
    triton: Triton,
    texts: Iterator[str],
    rate: float,
    quiet: float,
    away: float,
) -> FaultLoadResult:
    async def inject_fault() -> None:
        await asyncio.sleep(quiet)
        triton.signal(signal.SIGSTOP)
        await asyncio.sleep(away)
        triton.signal(signal.SIGCONT)

    return await load(system, texts, rate=rate, duration=2 * quiet + away, meanwhile=inject_fault)


def _judge(shown: CheckResult) -> None:
    if not shown.difference.is_none:
        raise AnswersDiffer(f"through the gateway: {shown.difference}")
    if not shown.batches or shown.rows[OURS]:
        raise AnswersDiffer(f"Triton did not answer: {shown.batches} batches, {shown.rows}")
    for name, found in (("killed", shown.killed), ("stopped", shown.stopped)):
        if found.unanswered or not found.difference.is_none:
            raise AnswersDiffer(
                f"{name}: {found.unanswered} requests without an answer, {found.difference}"
            )


def check(*, texts: int, rate: float, quiet: float, away: float, repeats: int) -> None:
    """Run all checks and print the results.

    Raises:
        AnswersDiffer: some answer is wrong or missing.
    """
    machine = this_machine()
    print(f"{machine.headline}\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = folder / "repository"
        build_demo_models(models, print)
        shown = asyncio.run(
            run_checks(folder, models, texts=texts, rate=rate, quiet=quiet, away=away)
        )
        _print(shown)
        scratch = folder / "alone"
        scratch.mkdir()
        graph = models / ENCODER / "1" / "model.onnx"
        with Triton(scratch, name=ENCODER, graph=graph, width=WIDTH) as triton:
            _print_wire(measure_wire(triton, graph, repeats=repeats))
            _print_served(measure_backends(triton, models, rounds=_ROUNDS, duration=_DURATION))


def _print(shown: CheckResult) -> None:
    same = shown.difference
    print(
        f"\n{same.texts} texts through gateway, backend and Triton ({shown.batches} batches there, "
        f"{shown.rows[OURS]:.0f} rows elsewhere): {same.other_labels} other labels than of our own "
        f"executor, scores at most {same.apart:.1g} apart"
    )
    print("\n| Triton | requests | statuses | wrong | p50 ms | p99 ms | slowest ms |")
    print("|---|---|---|---|---|---|---|")
    for name, found in (("killed and started again", shown.killed), ("stopped", shown.stopped)):
        latencies = " | ".join(f"{found.percentile(share) * 1000:.0f}" for share in (0.5, 0.99, 1))
        wrong = found.difference.other_labels
        print(f"| {name} | {len(found.answers)} | {found.statuses} | {wrong} | {latencies} |")
    print(f"\nwork went to Triton again {shown.back_after:.1f} s after it was ready")


def _print_wire(costs: list[WireCost]) -> None:
    print("\n| batch | output | JSON ms | raw ms | here ms | JSON KiB | raw KiB |")
    print("|---|---|---|---|---|---|---|")
    for cost in costs:
        times = f"{cost.json:.1f} | {cost.raw:.1f} | {cost.here:.1f}"
        sizes = f"{cost.json_bytes / 1024:.0f} | {cost.raw_bytes / 1024:.0f}"
        print(f"| {cost.rows} x {cost.length} | {cost.output.value} | {times} | {sizes} |")


def _print_served(served: BackendThroughput) -> None:
    print("\n| a backend over HTTP, 32 connections | sentences/s | runs |\n|---|---|---|")
    for name, rates in (("Triton runs the graph", served.theirs), ("its own", served.ours)):
        print(f"| {name} | {median(rates):.0f} | {', '.join(f'{rate:.0f}' for rate in rates)} |")
