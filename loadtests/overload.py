"""Measures a backend at twice its capacity: goodput and the latency of refusals."""

import contextlib
import os
from collections.abc import Callable, Iterator

import click
import msgspec

from backends.protocol import Done, Failed, FrameReader, Refusal
from loadtests.backend import RunningBackend, backend, calls
from loadtests.capacity import capacity, sustained
from loadtests.demo import demo_models
from loadtests.generator import Outcome, Target
from loadtests.machine import pin
from loadtests.measured import backends_of, classify_bodies, give_core, target_of
from loadtests.open_loop import Answer, outcome, run_open
from loadtests.options import duration
from loadtests.report import rows, show
from loadtests.workload import sentences
from testing.system import System

_BACKEND, _REST = 1, 0
_MODEL, _ENCODER = "sentiment", "minilm"
_RECOVERED = 2.0  # seconds after the overload, from which on everybody is answered in time
_TEXTS = 200_000


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
    with (_gateway if through_gateway else _backend)(deadline) as found:
        _overload(found, duration, deadline)


def _overload(entry_point: EntryPoint, duration: float, deadline: float) -> None:
    def run(rate: float, seconds: float) -> list[Answer]:
        return run_open(entry_point.target, entry_point.bodies, rate=rate, duration=seconds)

    done = entry_point.done
    able = capacity(run, lambda answers: sustained(answers, deadline, done))
    answers = run(2 * able, duration)
    after = run(able / 2, 5.0)
    refused = [a for a in answers if not done(a)]
    good = [a for a in answers if done(a) and a.latency <= deadline]
    measured = {
        "capacity": [Outcome(duration=1.0, statuses={}, latencies=[1.0] * round(able))],
        "goodput at twice that": [outcome(good, duration)],
        "refused at twice that": [outcome(refused, duration)],
    }
    show(entry_point.title, rows(measured))
    waited = [a for a in refused if a.latency > deadline / 4]
    recovered = [a.latency for a in after if a.due > _RECOVERED and done(a)]
    missed = sum(a.due > _RECOVERED and not done(a) for a in after)
    late = entry_point.running.counter("late_rows_total", _ENCODER)
    print(f"\nrows run after their deadline: {late:.0f}")
    said = sum(map(entry_point.says_when_to_retry, refused))
    print(f"{said} of {len(refused)} refusals said when to come back;")
    print(f"{len(waited)} took longer than {deadline / 4 * 1000:.0f} ms")
    print(f"{_RECOVERED:.0f} s later, at half the capacity, {len(recovered)} were answered,")
    print(f"{missed} not, the slowest after {max(recovered, default=0.0) * 1000:.0f} ms")


@contextlib.contextmanager
def _backend(deadline: float) -> Iterator[EntryPoint]:
    with demo_models() as models, backend(models, threads="1") as running:
        pin([running.pid], _BACKEND)
        pin([os.getpid()], _REST)
        texts = sentences(_TEXTS, seed=6)
        yield EntryPoint(
            title="Overload: a backend on one core",
            target=running.target,
            bodies=calls(texts, running.model(_MODEL), remaining=deadline),
            done=_is_done,
            says_when_to_retry=_says_when,
            running=running,
        )


@contextlib.contextmanager
def _gateway(deadline: float) -> Iterator[EntryPoint]:
    settings = {"SLUICEGATE_BACKEND_THREADS": "1"}
    with (
        demo_models() as models,
        System(models.parent / "data", models=models, environment=settings) as system,
    ):
        give_core(system, "backend", _BACKEND, others=_REST)
        pin([os.getpid()], _REST)
        yield EntryPoint(
            title="Overload through the gateway: backend on one core, the rest on the other",
            target=target_of(system, x_request_timeout=f"{deadline}"),
            bodies=iter(classify_bodies(sentences(_TEXTS, seed=6))),
            done=lambda answer: answer.status == 200,
            says_when_to_retry=lambda answer: b"\r\nretry-after:" in answer.head,
            running=backends_of(system)[0],
        )


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
