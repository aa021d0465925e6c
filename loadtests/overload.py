"""Measures a backend at twice its capacity: goodput and the latency of refusals."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec

from backends.model_tools.demo.build import build_demo_models
from backends.protocol import Done, Failed, FrameReader, Refusal
from loadtests.backend import RunningBackend, backend, calls
from loadtests.capacity import capacity, sustained
from loadtests.generator import Outcome, Target
from loadtests.machine import pin, this_machine
from loadtests.open_loop import Answer, open_loop
from loadtests.options import duration
from loadtests.report import rows, show
from loadtests.workload import sentences
from testing.system import System

_BACKEND, _REST = 1, 0
_MODEL, _ENCODER = "sentiment", "minilm"
_RECOVERED = 2.0  # seconds after the overload, from which on everybody is answered in time
_SETTINGS = {"SLUICEGATE_BACKEND_THREADS": "1"}


class EntryPoint(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The target of the load, and how to read its answers."""

    title: str
    target: Target
    bodies: Iterator[bytes]
    done: Callable[[Answer], bool]
    says_when_to_retry: Callable[[Answer], bool]
    running: RunningBackend


@click.command()
@duration(30.0, "Seconds at twice the capacity.")
@click.option("--deadline", default=0.5, help="Seconds a caller waits.")
@click.option("--through-gateway", is_flag=True, help="Ask a gateway, not the backend.")
def measure(*, duration: float, deadline: float, through_gateway: bool) -> None:
    """Find the capacity with the backend on one core and the rest on the other; load it twice."""
    with tempfile.TemporaryDirectory() as folder:
        entry_point = _gateway if through_gateway else _backend
        with entry_point(Path(folder), deadline) as found:
            _overload(found, duration, deadline)


def _overload(entry_point: EntryPoint, duration: float, deadline: float) -> None:
    def run(rate: float, seconds: float) -> list[Answer]:
        return asyncio.run(
            open_loop(entry_point.target, entry_point.bodies, rate=rate, duration=seconds)
        )

    able = capacity(run, lambda answers: sustained(answers, deadline, entry_point.done))
    answers = run(2 * able, duration)
    after = run(able / 2, 5.0)
    good = [a for a in answers if entry_point.done(a) and a.latency <= deadline]
    refused = [a for a in answers if not entry_point.done(a)]
    measured = {
        "capacity": [Outcome(duration=1.0, statuses={}, latencies=[1.0] * round(able))],
        "goodput at twice that": [_outcome(good, duration)],
        "refused at twice that": [_outcome(refused, duration)],
    }
    show(entry_point.title, rows(measured), {}, this_machine())
    waited = [a for a in refused if a.latency > deadline / 4]
    recovered = [a.latency for a in after if a.due > _RECOVERED and entry_point.done(a)]
    missed = sum(a.due > _RECOVERED and not entry_point.done(a) for a in after)
    late = entry_point.running.counter("late_rows_total", _ENCODER)
    print(f"\nrows run after their deadline: {late:.0f}")
    said = sum(map(entry_point.says_when_to_retry, refused))
    print(f"{said} of {len(refused)} refusals said when to come back;")
    print(f"{len(waited)} took longer than {deadline / 4 * 1000:.0f} ms")
    print(f"{_RECOVERED:.0f} s later, at half the capacity, {len(recovered)} were answered,")
    print(f"{missed} not, the slowest after {max(recovered, default=0.0) * 1000:.0f} ms")


@contextlib.contextmanager
def _backend(folder: Path, deadline: float) -> Iterator[EntryPoint]:
    build_demo_models(folder, print)
    with backend(folder, threads="1") as running:
        pin([running.pid], _BACKEND)
        pin([os.getpid()], _REST)
        texts = sentences(200_000, seed=6)
        yield EntryPoint(
            title="Overload: a backend on one core",
            target=running.target,
            bodies=calls(texts, running.model(_MODEL), remaining=deadline),
            done=_is_done,
            says_when_to_retry=_says_when,
            running=running,
        )


@contextlib.contextmanager
def _gateway(folder: Path, deadline: float) -> Iterator[EntryPoint]:
    with System(
        folder / "data",
        models=folder / "models",
        environment=_SETTINGS,
    ) as system:
        child = system.processes("backend")[0]
        pin([child.pid], _BACKEND)
        pin((p.pid for p in system.processes() if p.role != "backend"), _REST)
        pin([os.getpid()], _REST)
        headers = (
            ("authorization", f"Bearer {system.key}"),
            ("x-request-timeout", f"{deadline}"),
        )
        target = Target(host="127.0.0.1", port=system.port, path="/v1/classify", headers=headers)
        port = int((child.address or "").rpartition(":")[2])
        yield EntryPoint(
            title="Overload through the gateway: backend on one core, the rest on the other",
            target=target,
            bodies=_requests(),
            done=lambda answer: answer.status == 200,
            says_when_to_retry=lambda answer: b"\r\nretry-after:" in answer.head,
            running=RunningBackend(port=port, pid=child.pid),
        )


def _requests() -> Iterator[bytes]:
    for text in sentences(200_000, seed=6):
        yield msgspec.json.encode({"model": _MODEL, "input": text})


def _is_done(answer: Answer) -> bool:
    if answer.status != 200:
        return False
    return any(isinstance(frame, Done) for frame in FrameReader().feed(answer.body))


def _says_when(answer: Answer) -> bool:
    if answer.status == 200:
        frames = [f for f in FrameReader().feed(answer.body) if isinstance(f, Failed)]
        return any(frame.retry_after is not None for frame in frames)
    if not answer.status:
        return False
    return msgspec.msgpack.decode(answer.body, type=Refusal).retry_after is not None


def _outcome(answers: list[Answer], duration: float) -> Outcome:
    latencies = sorted(answer.latency for answer in answers)
    statuses: dict[int, int] = {}
    for answer in answers:
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
    return Outcome(duration=duration, statuses=statuses, latencies=latencies)
