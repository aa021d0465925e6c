"""Runs a gateway over two regions of one model: one on Triton, one on our executor."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec

from backends.protocol import Done, FrameReader
from loadtests.backend import RunningBackend, calls
from loadtests.faults.paced_backend import BackendSpec
from loadtests.faults.processes import Processes, Setup
from loadtests.generator import Target
from loadtests.open_loop import Answer, open_loop
from loadtests.triton.process import Triton

MODEL, ENCODER, WIDTH = "sentiment", "minilm", 384
THEIRS, OURS = "theirs-0", "ours-0"
TENANT = "north"
# Other machines round otherwise; scores have six digits.
TOLERANCE = 1e-5
_CHUNK = 20
_OK = 200
Scores = dict[str, dict[str, float]]


class _Label(msgspec.Struct, frozen=True):
    label: str
    score: float


class _Labels(msgspec.Struct, frozen=True):
    labels: list[_Label]

    @property
    def scores(self) -> dict[str, float]:
        return {each.label: each.score for each in self.labels}


class _Results(msgspec.Struct, frozen=True):
    results: list[_Labels]


class AnswerDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between answers to the same texts; `apart` is that of scores."""

    texts: int
    other_labels: int
    apart: float

    @property
    def is_none(self) -> bool:
        """Whether they are the same answers."""
        return self.texts > 0 and not self.other_labels and self.apart <= TOLERANCE


class FaultLoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an open loop over a fault; `difference` is that of answers with 200."""

    answers: list[Answer]
    unanswered: int
    difference: AnswerDifference

    @property
    def statuses(self) -> dict[int, int]:
        """Answers by their status."""
        found = [answer.status for answer in self.answers]
        return {status: found.count(status) for status in sorted(set(found))}

    def percentile(self, share: float) -> float:
        """Return the latency in seconds that `share` of the answers did not exceed."""
        latencies = sorted(answer.latency for answer in self.answers)
        return latencies[min(len(latencies) - 1, int(share * len(latencies)))]


@asynccontextmanager
async def fleet(folder: Path, models: Path, triton: Triton) -> AsyncIterator[Processes]:
    """Run both backends and a gateway that prefers the one before Triton."""
    theirs = {"provider": "open_inference", "upstream_url": triton.url}
    specs = (
        BackendSpec(name=THEIRS, region="theirs", models=models, settings=theirs),
        BackendSpec(name=OURS, region="ours", models=models, settings={"provider": "cpu"}),
    )
    with Processes(folder, Setup(backends=specs, workers=1)) as system:
        yield system


def backend_of(system: Processes, name: str) -> RunningBackend:
    """Return a backend, to be called without the gateway."""
    return RunningBackend(port=system.backends[name].port, pid=0)


async def through_gateway(system: Processes, texts: list[str]) -> Scores:
    """Return the scores of each text, by `POST /v1/classify`."""
    found: Scores = {}
    headers = {"authorization": f"Bearer {system.keys[TENANT]}"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as client:
        for start in range(0, len(texts), _CHUNK):
            chunk = texts[start : start + _CHUNK]
            answer = await client.post(
                f"http://127.0.0.1:{system.gateway.port}/v1/classify",
                json={"model": MODEL, "input": chunk},
            )
            results = msgspec.json.decode(answer.raise_for_status().content, type=_Results)
            found |= {t: each.scores for t, each in zip(chunk, results.results, strict=True)}
    return found


async def of_backend(backend: RunningBackend, texts: Iterable[str]) -> Scores:
    """Return the scores of each text, by a backend alone."""
    asked = list(texts)
    found: Scores = {}
    target = backend.target
    async with httpx.AsyncClient(timeout=30) as client:
        for text, call in zip(asked, calls(asked, backend.model(MODEL)), strict=True):
            url = f"http://{target.host}:{target.port}{target.path}"
            answer = (await client.post(url, content=call)).raise_for_status()
            done = FrameReader().feed(answer.content)[0]
            if not isinstance(done, Done):
                raise TypeError(done)
            found[text] = msgspec.json.decode(done.result, type=_Labels).scores
    return found


def compare(found: Mapping[str, dict[str, float]], expected: Scores) -> AnswerDifference:
    """Hold answers to those that are expected."""
    pairs = [(scores, expected[text]) for text, scores in found.items()]
    return AnswerDifference(
        texts=len(pairs),
        other_labels=sum(max(a, key=a.__getitem__) != max(b, key=b.__getitem__) for a, b in pairs),
        apart=max((abs(a[label] - b[label]) for a, b in pairs for label in b), default=0.0),
    )


async def load(
    system: Processes,
    texts: Iterator[str],
    *,
    rate: float,
    duration: float,
    meanwhile: Callable[[], Awaitable[None]],
) -> FaultLoadResult:
    """Send a text at a time, `rate` a second, while something happens; judge every answer."""
    sent: list[str] = []

    def bodies() -> Iterator[bytes]:
        for text in texts:
            sent.append(text)
            yield msgspec.json.encode({"model": MODEL, "input": text})

    target = Target(
        host="127.0.0.1",
        port=system.gateway.port,
        path="/v1/classify",
        headers=(
            ("authorization", f"Bearer {system.keys[TENANT]}"),
            ("content-type", "application/json"),
        ),
    )
    answers, _ = await asyncio.gather(
        open_loop(target, bodies(), rate=rate, duration=duration), meanwhile()
    )
    unanswered = len(sent) - len(answers)
    # In the order they were due, so that each is that of its text; none can be judged otherwise.
    in_order = sorted(answers, key=lambda answer: answer.due)
    judged = [] if unanswered else list(zip(sent, in_order, strict=True))
    good = {text: _scores(answer.body) for text, answer in judged if answer.status == _OK}
    expected = await of_backend(backend_of(system, OURS), good)
    return FaultLoadResult(
        answers=answers, unanswered=unanswered, difference=compare(good, expected)
    )


def _scores(body: bytes) -> dict[str, float]:
    (only,) = msgspec.json.decode(body, type=_Results).results
    return only.scores
