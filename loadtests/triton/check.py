"""Checks a real Triton as a region: equal answers, faults under load, cost of the wire."""

import asyncio
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import msgspec

from backends.model_tools.demo.build import build_demo_models
from backends.protocol import Done, FrameReader
from gateway.auth.keys import hash_key
from gateway.ledger.ledger import Ledger
from gateway.types import Rule
from loadtests.backend import RunningBackend, backend, calls
from loadtests.gateway import Gateway
from loadtests.generator import Target
from loadtests.machine import this_machine
from loadtests.open_loop import Answer, open_loop
from loadtests.triton.server import Triton
from loadtests.triton.wire import measure_backends, measure_wire
from loadtests.workload import sentences
from testing.valkey import Valkey
from testing.waiting import wait_until

MODEL, ENCODER, WIDTH = "sentiment", "minilm", 384
_KEY = "sk-triton-check-0123456789"
_PLENTY = Rule(name="minute", unit="requests", capacity=1_000_000_000, window=60.0)
_CHUNK = 20
_RETURNED = 30.0
# Machines round differently; scores have six digits.
_TOLERANCE = 1e-5
Scores = Mapping[str, Mapping[str, float]]


class AnswersDiffer(Exception):
    """Answers through Triton are not those of our own executor, or some are missing."""


class AnswerDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between answers to the same texts; `apart` is that of scores."""

    texts: int
    other_labels: int
    apart: float

    @property
    def is_none(self) -> bool:
        """Whether they are the same answers."""
        return self.texts > 0 and not self.other_labels and self.apart <= _TOLERANCE


class FaultResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of an open loop over a fault; `difference` is that of answers with 200."""

    answers: list[Answer]
    difference: AnswerDifference

    @property
    def statuses(self) -> dict[int, int]:
        """Answers by their status."""
        return dict(Counter(answer.status for answer in self.answers))


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. `batches` are Triton's, `elsewhere` the rows that it did not answer."""

    difference: AnswerDifference
    batches: int
    elsewhere: float
    killed: FaultResult
    back_after: float
    stopped: FaultResult


class _Check:
    """A gateway over two regions of one model: the preferred one on Triton, one on our executor."""

    def __init__(self, stack: ExitStack, folder: Path, models: Path) -> None:
        (folder / "triton").mkdir()
        graph = models / ENCODER / "1" / "model.onnx"
        scratch = folder / "triton"
        self.triton = stack.enter_context(Triton(scratch, name=ENCODER, graph=graph, width=WIDTH))
        remote = {"provider": "open_inference", "upstream_url": self.triton.url}
        theirs = stack.enter_context(backend(models, **remote))
        self.ours = stack.enter_context(backend(models, threads="1"))
        valkey = stack.enter_context(Valkey())
        regions = [
            {"name": name, "pools": [{"backends": [{"id": name, "url": _url(each)}]}]}
            for name, each in (("theirs", theirs), ("ours", self.ours))
        ]
        self.gateway = Gateway(
            folder / "gateway",
            {"regions": regions, "deadline": {"default": 60.0}},
            workers=1,
            state_url=valkey.url,
            cache_url=valkey.url,
        )
        with Ledger.create(self.gateway.settings.ledger) as ledger:
            ledger.accounts.create_tenant("check", rules=(_PLENTY,))
            ledger.accounts.create_key("check", key_hash=hash_key(_KEY))
        stack.enter_context(self.gateway)

    def through_gateway(self, texts: Sequence[str]) -> Scores:
        """Return the scores of each text, by `POST /v1/classify`."""
        target = self.gateway.target(_KEY)
        url = f"http://{target.host}:{target.port}{target.path}"
        found: dict[str, Mapping[str, float]] = {}
        with httpx.Client(headers=dict(target.headers), timeout=30) as client:
            for start in range(0, len(texts), _CHUNK):
                chunk = texts[start : start + _CHUNK]
                answer = client.post(url, json={"model": MODEL, "input": chunk}).raise_for_status()
                found |= zip(chunk, _scores(answer.content), strict=True)
        return found

    def by_ours(self, texts: Sequence[str]) -> Scores:
        """Return the scores of each text, by our backend alone."""
        found: dict[str, Mapping[str, float]] = {}
        target = self.ours.target
        with httpx.Client(timeout=30) as client:
            for text, call in zip(texts, calls(texts, self.ours.model(MODEL)), strict=True):
                answer = client.post(f"{_url(self.ours)}{target.path}", content=call)
                done = FrameReader().feed(answer.raise_for_status().content)[0]
                if not isinstance(done, Done):
                    raise TypeError(done)
                found[text] = _labels(msgspec.json.decode(done.result))
        return found

    def load(
        self, texts: Iterator[str], *, rate: float, seconds: float, fault: Callable[[], None]
    ) -> FaultResult:
        """Send a text at a time, `rate` a second, during a fault; judge every answer.

        Raises:
            AnswersDiffer: a request has no answer, or a wrong one.
        """
        sent: list[str] = []

        def bodies() -> Iterator[bytes]:
            for text in texts:
                sent.append(text)
                yield msgspec.json.encode({"model": MODEL, "input": text})

        target = self.gateway.target(_KEY)
        json = ("content-type", "application/json")
        target = Target(
            host=target.host, port=target.port, path=target.path, headers=(*target.headers, json)
        )

        async def run() -> list[Answer]:
            answers, _ = await asyncio.gather(
                open_loop(target, bodies(), rate=rate, duration=seconds, patience=60.0),
                asyncio.to_thread(fault),
            )
            return answers

        answers = sorted(asyncio.run(run()), key=lambda answer: answer.due)
        if len(sent) != len(answers) or any(answer.status == 0 for answer in answers):
            raise AnswersDiffer(f"of {len(sent)} requests some have no answer")
        # In the order they were due, so that each is that of its text.
        good = {
            text: _scores(answer.body)[0]
            for text, answer in zip(sent, answers, strict=True)
            if answer.status == 200
        }
        expected = self.by_ours(list(good))
        for text, scores in good.items():
            if not compare({text: scores}, expected).is_none:
                raise AnswersDiffer(f"`{text}`: {scores} instead of {expected[text]}")
        difference = compare(good, expected)
        return FaultResult(answers=answers, difference=difference)

    def kill(self, quiet: float, away: float) -> float:
        """Kill Triton for a while; return after how many seconds it got work again."""
        time.sleep(quiet)
        self.triton.kill()
        time.sleep(away)
        self.triton.start()
        started, before = time.perf_counter(), self.triton.runs()
        # A backend that found Triton missing measures cost and agreement of each encoder again.
        wait_until(lambda: self.triton.runs() > before, within=_RETURNED, what="work for Triton")
        return time.perf_counter() - started

    def stop(self, quiet: float, away: float) -> None:
        """Stop Triton for a while."""
        time.sleep(quiet)
        self.triton.signal(signal.SIGSTOP)
        time.sleep(away)
        self.triton.signal(signal.SIGCONT)


def run_checks(
    folder: Path, models: Path, *, texts: int, rate: float, quiet: float, away: float
) -> CheckResult:
    """Ask for `texts` answers; then load, with Triton killed and stopped for `away` seconds each.

    Raises:
        AnswersDiffer: some answer is wrong or missing, or Triton had no part in them.
    """
    with ExitStack() as stack:
        check = _Check(stack, folder, models)
        asked, before = sentences(texts, seed=40), check.triton.runs()
        found = check.through_gateway(asked)
        batches = check.triton.runs() - before
        elsewhere = check.ours.counter("rows_total", ENCODER)
        difference = compare(found, check.by_ours(asked))
        if not difference.is_none or not batches or elsewhere:
            raise AnswersDiffer(f"{difference}, {batches} batches, {elsewhere:.0f} rows elsewhere")
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
        difference=difference,
        batches=batches,
        elsewhere=elsewhere,
        killed=killed,
        back_after=back_after[0],
        stopped=stopped,
    )


def compare(found: Scores, expected: Scores) -> AnswerDifference:
    """Compare answers with the expected ones."""
    pairs = [(scores, expected[text]) for text, scores in found.items()]
    return AnswerDifference(
        texts=len(pairs),
        other_labels=sum(max(a, key=a.__getitem__) != max(b, key=b.__getitem__) for a, b in pairs),
        apart=max((abs(a[label] - b[label]) for a, b in pairs for label in b), default=0.0),
    )


def check(*, texts: int, rate: float, quiet: float, away: float, repeats: int) -> None:
    """Run all checks and print the results.

    Raises:
        AnswersDiffer: some answer is wrong or missing.
    """
    print(f"{this_machine().headline}\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = folder / "repository"
        build_demo_models(models, print)
        shown = run_checks(folder, models, texts=texts, rate=rate, quiet=quiet, away=away)
        same = shown.difference
        print(
            f"\n{same.texts} texts through gateway, backend and Triton ({shown.batches} batches):"
        )
        print(f"the labels of our own executor, scores at most {same.apart:.1g} apart")
        print("\n| Triton | requests | statuses | p50 ms | p99 ms | slowest ms |")
        print("|---|---|---|---|---|---|")
        for what, found in (("killed, started again", shown.killed), ("stopped", shown.stopped)):
            times = sorted(answer.latency * 1000 for answer in found.answers)
            cells = (times[len(times) // 2], times[len(times) * 99 // 100], times[-1])
            latencies = " | ".join(f"{cell:.0f}" for cell in cells)
            print(f"| {what} | {len(times)} | {found.statuses} | {latencies} |")
        print(f"\nTriton got work again {shown.back_after:.1f} s after it was ready")
        (folder / "alone").mkdir()
        graph = models / ENCODER / "1" / "model.onnx"
        with Triton(folder / "alone", name=ENCODER, graph=graph, width=WIDTH) as triton:
            measure_wire(triton, graph, model=ENCODER, width=WIDTH, repeats=repeats)
            measure_backends(triton, models, model=MODEL)


def _scores(body: bytes) -> list[Mapping[str, float]]:
    return [_labels(each) for each in msgspec.json.decode(body)["results"]]


def _labels(result: Mapping[str, list[dict[str, float]]]) -> Mapping[str, float]:
    return {str(each["label"]): each["score"] for each in result["labels"]}


def _url(each: RunningBackend) -> str:
    return f"http://127.0.0.1:{each.port}"
