"""Checks a region that runs a real Triton: equal answers, faults, and the cost of the transport."""

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
import httpx
import msgspec

from backends.model_tools.demo.build import build_demo_models
from gateway.types import Rule
from loadtests.backend import backend, calls
from loadtests.gateway import running_gateway
from loadtests.generator import Outcome
from loadtests.open_loop import open_loop, outcome
from loadtests.report import heading, milliseconds, print_table
from loadtests.triton.server import Triton
from loadtests.triton.wire import measure_backends, measure_wire
from loadtests.workload import sentences
from testing.waiting import wait_until
from wire.protocol import Done, FrameReader

MODEL, ENCODER, WIDTH = "sentiment", "minilm", 384
_KEY = "sk-triton-check-0123456789"
_PLENTY = Rule(name="minute", unit="requests", capacity=1_000_000_000, window=60.0)
_CHUNK = 20
_RETURNED = 30.0
# Processors round differently; scores have six digits.
_TOLERANCE = 1e-5
Scores = Mapping[str, Mapping[str, float]]
"""The score of each label, by text."""


class AnswersDiffer(Exception):
    """Answers of Triton differ from answers of our own executor, or are missing."""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: Triton's batches, the distance of scores, and answers during faults."""

    batches: int
    apart: float
    killed: Outcome
    back_after: float
    stopped: Outcome


@click.command("triton")
@click.option("--texts", default=200, help="Texts to compare with our own executor.")
@click.option("--rate", default=40.0, help="Requests a second during faults.")
@click.option("--quiet", default=4.0, help="Seconds before and after a fault.")
@click.option("--away", default=4.0, help="Seconds that Triton is down.")
@click.option("--repeats", default=30, help="Batches of each shape to time.")
def triton_command(*, texts: int, rate: float, quiet: float, away: float, repeats: int) -> None:
    """Compare Triton's answers with our own executor's, and let Triton fail under load."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = folder / "repository"
        build_demo_models(models, print)
        shown = run_checks(folder, models, texts=texts, rate=rate, quiet=quiet, away=away)
        heading(f"{texts} texts through gateway, backend and Triton ({shown.batches} batches)")
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
        (folder / "alone").mkdir()
        graph = models / ENCODER / "1" / "model.onnx"
        with Triton(folder / "alone", name=ENCODER, graph=graph, width=WIDTH) as triton:
            measure_wire(triton, graph, model=ENCODER, width=WIDTH, repeats=repeats)
            measure_backends(triton, models, model=MODEL)


def run_checks(
    folder: Path, models: Path, *, texts: int, rate: float, quiet: float, away: float
) -> CheckResult:
    """Compare `texts` answers; then send load while Triton is killed, and while it is paused.

    Each fault lasts `away` seconds.

    Raises:
        AnswersDiffer: an answer is wrong or missing, or Triton computed none of them.
    """
    with ExitStack() as stack:
        check = _Check(stack, folder, models)
        asked, before = sentences(texts, seed=40), check.triton.runs()
        found = check.through_gateway(asked)
        batches = check.triton.runs() - before
        elsewhere = check.ours.counter("rows_total", ENCODER)
        if not batches or elsewhere:
            raise AnswersDiffer(f"{batches} batches of Triton, {elsewhere:.0f} rows elsewhere")
        apart = compare(found, check.by_ours(asked))
        others = iter(sentences(20_000, seed=41))
        back_after = list[float]()
        killed = check.load(
            others,
            rate=rate,
            seconds=2 * quiet + away + 6,
            fault=lambda: back_after.append(check.kill(quiet, away)),
        )
        stopped = check.load(
            others, rate=rate, seconds=2 * quiet + away, fault=lambda: check.stop(quiet, away)
        )
    return CheckResult(
        batches=batches, apart=apart, killed=killed, back_after=back_after[0], stopped=stopped
    )


def compare(found: Scores, expected: Scores) -> float:
    """Return the largest distance of the scores from the expected scores of the same texts.

    Raises:
        AnswersDiffer: a label differs, or a score is too far from the expected score.
    """
    farthest = 0.0
    for text, scores in found.items():
        wanted = expected[text]
        apart = max(abs(scores[label] - wanted[label]) for label in wanted)
        is_other = max(scores, key=scores.__getitem__) != max(wanted, key=wanted.__getitem__)
        if is_other or not apart <= _TOLERANCE:  # false for NaN too
            raise AnswersDiffer(f"`{text}`: {scores} instead of {wanted}")
        farthest = max(farthest, apart)
    return farthest


class _Check:
    """A gateway over two regions of one model; the preferred region uses Triton."""

    def __init__(self, stack: ExitStack, folder: Path, models: Path) -> None:
        (folder / "triton").mkdir()
        graph = models / ENCODER / "1" / "model.onnx"
        self.triton = stack.enter_context(
            Triton(folder / "triton", name=ENCODER, graph=graph, width=WIDTH)
        )
        remote = {"provider": "open_inference", "upstream_url": self.triton.url}
        theirs = stack.enter_context(backend(models, **remote))
        self.ours = stack.enter_context(backend(models, threads="1"))
        regions = [
            {"name": name, "pools": [{"backends": [{"id": name, "url": each.url}]}]}
            for name, each in (("theirs", theirs), ("ours", self.ours))
        ]
        gateway = running_gateway(
            folder / "gateway",
            {"regions": regions, "deadline": {"default": 60.0}},
            keys={"check": _KEY},
            workers=1,
            rules=(_PLENTY,),
        )
        self._target = stack.enter_context(gateway).target(_KEY)

    def through_gateway(self, texts: Sequence[str]) -> Scores:
        """Return the scores of each text, from `POST /v1/classify`."""
        url = f"http://{self._target.host}:{self._target.port}{self._target.path}"
        found: dict[str, Mapping[str, float]] = {}
        with httpx.Client(headers=dict(self._target.headers), timeout=30) as client:
            for start in range(0, len(texts), _CHUNK):
                chunk = texts[start : start + _CHUNK]
                answer = client.post(url, json={"model": MODEL, "input": chunk}).raise_for_status()
                found |= zip(chunk, _scores(answer.content), strict=True)
        return found

    def by_ours(self, texts: Sequence[str]) -> Scores:
        """Return the scores of each text, computed by the backend with our own executor."""
        found: dict[str, Mapping[str, float]] = {}
        with httpx.Client(timeout=30) as client:
            for text, call in zip(texts, calls(texts, self.ours.model(MODEL)), strict=True):
                answer = client.post(f"{self.ours.url}{self.ours.target.path}", content=call)
                done = FrameReader().feed(answer.raise_for_status().content)[0]
                if not isinstance(done, Done):
                    raise TypeError(done)
                found[text] = _labels(msgspec.json.decode(done.result))
        return found

    def load(
        self, texts: Iterator[str], *, rate: float, seconds: float, fault: Callable[[], None]
    ) -> Outcome:
        """Send one text a request, `rate` a second, during a fault; judge every answer.

        Raises:
            AnswersDiffer: a request has no answer, or a wrong one.
        """
        sent: list[str] = []

        def bodies() -> Iterator[bytes]:
            for text in texts:
                sent.append(text)
                yield msgspec.json.encode({"model": MODEL, "input": text})

        async def run() -> Outcome:
            answers, _ = await asyncio.gather(
                open_loop(self._target, bodies(), rate=rate, duration=seconds, patience=60.0),
                asyncio.to_thread(fault),
            )
            # Answers are in the order in which their requests were due, so each belongs to its
            # text.
            answers.sort(key=lambda answer: answer.due)
            if len(sent) != len(answers) or any(answer.status == 0 for answer in answers):
                raise AnswersDiffer(f"of {len(sent)} requests some have no answer")
            good = {
                text: _scores(answer.body)[0]
                for text, answer in zip(sent, answers, strict=True)
                if answer.status == 200
            }
            compare(good, self.by_ours(list(good)))
            return outcome(answers, seconds)

        return asyncio.run(run())

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


def _scores(body: bytes) -> list[Mapping[str, float]]:
    return [_labels(each) for each in msgspec.json.decode(body)["results"]]


def _labels(result: Mapping[str, list[dict[str, float]]]) -> Mapping[str, float]:
    return {str(each["label"]): each["score"] for each in result["labels"]}
