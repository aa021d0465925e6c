"""Checks a region that runs a real Triton: equal answers, faults, and the rate of its backend."""

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import click
import httpx
import msgspec

from loadtests.backend import RunningBackend, backend, calls
from loadtests.gateway import WIDE_LIMITS, running_gateway
from loadtests.generator import Answer, Outcome, run_closed
from loadtests.measured import demo_models, metered
from loadtests.open_loop import open_loop, outcome
from loadtests.peers.answers import AnswersDiffer, check_answers, values_of
from loadtests.report import heading, milliseconds, print_table, show, table_of
from loadtests.triton.server import ENCODER, Triton
from loadtests.turns import in_turns
from loadtests.workload import sentences
from sluicegate.wire.protocol import Task
from testing.waiting import wait_until

_MODEL, _TEXTS = "sentiment", 200
_KEY = "sk-triton-check-0123456789"
_CHUNK = 20
_RETURNED = 30.0
# Processors round differently; scores have six digits.
_TOLERANCE = 1e-5
_Result = TypeVar("_Result")


class _Answer(msgspec.Struct):
    results: list[msgspec.Raw]


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: Triton's batches, the distance of scores, and answers during faults."""

    batches: int
    apart: float
    killed: Outcome
    back_after: float
    stopped: Outcome


@click.command("triton")
def triton_command() -> None:
    """Compare Triton's answers with our own executor's, and let Triton fail under load."""
    with demo_models() as models:
        folder = models.parent
        shown = run_checks(folder, models, rate=40.0, quiet=4.0, away=4.0)
        heading(f"{_TEXTS} texts through gateway, backend and Triton ({shown.batches} batches)")
        print(f"the labels of our own executor, scores at most {shown.apart:.1g} apart\n")
        faults = {"killed, started again": shown.killed, "stopped": shown.stopped}
        print_table(
            ("Triton", "requests", "statuses", "p50 ms", "p99 ms", "slowest ms"),
            [
                (
                    *(what, len(found.latencies), found.statuses),
                    *(milliseconds(found.percentile(share)) for share in (0.5, 0.99, 1.0)),
                )
                for what, found in faults.items()
            ],
        )
        print(f"\nTriton got work again {shown.back_after:.1f} s after it was ready")
        with Triton(folder / "alone", models) as triton:
            _measure_backends(triton, models)


def _measure_backends(triton: Triton, models: Path) -> None:
    """Print the rates over HTTP of a backend on Triton and of a backend on our executor."""
    seeds = itertools.count(200)

    def ask(running: RunningBackend) -> Outcome:
        bodies = calls(sentences(20_000, seed=next(seeds)), running.model(_MODEL))
        return run_closed(running.target, bodies, connections=32, duration=4.0)

    with (
        backend(models, provider="open_inference", upstream_url=triton.url) as theirs,
        backend(models) as ours,
    ):
        ways = {"Triton runs the graph": theirs, "its own": ours}
        runs = {what: metered(partial(ask, each)) for what, each in ways.items()}
        show("A backend over HTTP", table_of(in_turns(runs, rounds=3)), keep=False)


def run_checks(
    folder: Path, models: Path, *, rate: float, quiet: float, away: float
) -> CheckResult:
    """Compare answers; then send load while Triton is killed, and while it is paused.

    Each fault lasts `away` seconds. `quiet` seconds pass before and after a fault.

    Raises:
        AnswersDiffer: an answer is wrong or missing, or Triton computed none of them.
    """
    with ExitStack() as stack:
        check = _Check(stack, folder, models)
        asked, before = sentences(_TEXTS, seed=40), check.triton.runs()
        found = check.through_gateway(asked)
        batches = check.triton.runs() - before
        elsewhere = check.ours.counter("rows_total", ENCODER)
        if not batches or elsewhere:
            raise AnswersDiffer(f"{batches} batches of Triton, {elsewhere:.0f} rows elsewhere")
        apart = check.differs(asked, found)
        others = iter(sentences(20_000, seed=41))
        seconds = 2 * quiet + away
        killed, back_after = check.load(
            others, rate=rate, seconds=seconds + 6, fault=lambda: check.kill(quiet, away)
        )
        stopped, _ = check.load(
            others, rate=rate, seconds=seconds, fault=lambda: check.stop(quiet, away)
        )
    return CheckResult(
        batches=batches, apart=apart, killed=killed, back_after=back_after, stopped=stopped
    )


class _Check:
    """A gateway over two regions of one model; the preferred region uses Triton."""

    def __init__(self, stack: ExitStack, folder: Path, models: Path) -> None:
        self.triton = stack.enter_context(Triton(folder / "triton", models))
        remote = {"provider": "open_inference", "upstream_url": self.triton.url}
        theirs = stack.enter_context(backend(models, **remote))
        self.ours = stack.enter_context(backend(models, threads="1"))
        regions = [
            {"name": name, "pools": [{"backends": [{"id": name, "url": each.url}]}]}
            for name, each in (("theirs", theirs), ("ours", self.ours))
        ]
        gateway = running_gateway(
            folder / "gateway",
            {"regions": regions, "deadline": {"default": 60.0}, "limits": WIDE_LIMITS},
            keys={"check": _KEY},
            workers=1,
        )
        self._target = stack.enter_context(gateway).target(_KEY)

    def through_gateway(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the scores of each text, from requests of many texts."""
        url = f"http://{self._target.host}:{self._target.port}{self._target.path}"
        found: list[list[float]] = []
        with httpx.Client(headers=dict(self._target.headers), timeout=30) as client:
            for start in range(0, len(texts), _CHUNK):
                body = {"model": _MODEL, "input": texts[start : start + _CHUNK]}
                answer = client.post(url, json=body).raise_for_status()
                results = msgspec.json.decode(answer.content, type=_Answer).results
                found += [values_of(Task.CLASSIFY, bytes(each)) for each in results]
        return found

    def differs(self, texts: Sequence[str], found: list[list[float]]) -> float:
        """Compare scores with the scores of the backend with our own executor.

        Return the largest difference.

        Raises:
            AnswersDiffer: a label differs, or a score is too far from ours.
        """
        url = f"{self.ours.url}{self.ours.target.path}"
        with httpx.Client(timeout=30) as client:
            expected = [
                values_of(Task.CLASSIFY, client.post(url, content=each).raise_for_status().content)
                for each in calls(texts, self.ours.model(_MODEL))
            ]
        return check_answers(expected, found, task=Task.CLASSIFY, tolerance=_TOLERANCE)

    def load(
        self, texts: Iterator[str], *, rate: float, seconds: float, fault: Callable[[], _Result]
    ) -> tuple[Outcome, _Result]:
        """Send one text a request, `rate` a second, during a fault; judge every answer.

        Also return the result of the fault.

        Raises:
            AnswersDiffer: a request has no answer, or a wrong one.
        """
        asked = list(islice(texts, round(2 * rate * seconds)))
        bodies = (msgspec.json.encode({"model": _MODEL, "input": text}) for text in asked)

        async def run() -> tuple[list[Answer], _Result]:
            return await asyncio.gather(
                open_loop(self._target, bodies, rate=rate, duration=seconds, patience=60.0),
                asyncio.to_thread(fault),
            )

        answers, result = asyncio.run(run())
        # In this order, each answer belongs to its text.
        answers.sort(key=lambda answer: answer.due)
        if any(answer.status == 0 for answer in answers):
            raise AnswersDiffer(f"of {len(answers)} requests some have no answer")
        good = [pair for pair in zip(asked, answers, strict=False) if pair[1].status == 200]
        found = [values_of(Task.CLASSIFY, answer.body) for _, answer in good]
        self.differs([text for text, _ in good], found)
        return outcome(answers, seconds), result

    def kill(self, quiet: float, away: float) -> float:
        """Kill Triton for a while; return the seconds until it got batches again."""
        time.sleep(quiet)
        self.triton.kill()
        time.sleep(away)
        self.triton.start()
        started, before = time.perf_counter(), self.triton.runs()
        # A backend that found no Triton at its start measures each encoder's cost and agreement
        # again.
        wait_until(lambda: self.triton.runs() > before, within=_RETURNED, what="work for Triton")
        return time.perf_counter() - started

    def stop(self, quiet: float, away: float) -> None:
        """Pause Triton for a while."""
        time.sleep(quiet)
        self.triton.signal(signal.SIGSTOP)
        time.sleep(away)
        self.triton.signal(signal.SIGCONT)
