"""Sends requests of the largest allowed size, and measures how they affect other callers."""

import multiprocessing
import os
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any  # Any: JSON

import click
import msgspec

from loadtests.fuzz_amplification.sending import Answer, Target, hits, leave_the_session, send_all
from loadtests.fuzzing import MemoryWatch, end_with, print_answers, seeded_run
from loadtests.generator import percentile
from loadtests.measured import demo_models
from loadtests.options import duration, seed
from testing.ports import free_port
from testing.system import System

_MOST_HIT_P99 = 0.05
_CALM = 5.0
"""Seconds for which hits are measured before any large request is sent."""
_ROLES = ("gateway", "batches", "backend")
_BOUND = 1024**3
"""The most bytes that each process of these roles may have resident."""
_FAULTS = (0, 500, 502)
_TIMERS = re.compile(
    r"^sluicegate_(backend_)?event_loop_held_seconds_bucket"
    r'\{le="(0\.1|\+Inf)"(?:,role="gateway")?\} (\S+)',
    re.MULTILINE,
)


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    answers: list[Answer]
    calm_hits: list[float]
    """The latencies of another customer's hits before the run, in order."""
    hits: list[float]
    """The latencies of the same customer's hits during the run, in order."""
    held: Counter[str]
    """How many times the event loop of a `gateway` or a `backend` was held for over 100 ms."""
    memory: dict[str, int]
    """The largest resident memory of each process during the run, in bytes."""
    replaced: list[str]


@click.command("fuzz-amplification")
@duration(200.0, "Seconds for which requests are sent.")
@seed
def fuzz_amplification_command(*, duration: float, seed: int | None) -> None:
    """Send requests of the largest allowed size; report blocked event loops and exceeded bounds."""
    with seeded_run(seed) as (folder, chosen):
        observed = fuzz(folder, seed=chosen, duration=duration)
    show(observed)
    end_with(findings(observed))


def fuzz(folder: Path, *, seed: int, duration: float) -> Observed:
    """Send one customer's requests for `duration` seconds, and watch the system."""
    environment = {"SLUICEGATE_BATCHES": "true", "SLUICEGATE_GRPC_PORT": str(free_port())}
    spawning = multiprocessing.get_context("spawn")
    with (
        demo_models() as models,
        System(folder / "data", models=models, workers=2, environment=environment) as system,
        # In a session of its own, a process is scheduled as if on a separate machine.
        ProcessPoolExecutor(1, spawning, os.setsid) as bystander,
        ProcessPoolExecutor(1, spawning, leave_the_session) as amplifier,
    ):
        calm_hits = bystander.submit(hits, system.port, system.key, _CALM).result()
        before, pids = held_timers(_metrics(system)), _pids(system)
        with MemoryWatch(pids) as watch:
            target = Target(system.url, system.grpc_address, _new_key(system))
            sending = amplifier.submit(send_all, target, seed, duration)
            busy_hits = bystander.submit(hits, system.port, system.key, duration).result()
            answers = sending.result()
        now = _pids(system)
        return Observed(
            answers=answers,
            calm_hits=sorted(calm_hits),
            hits=sorted(busy_hits),
            held=held_timers(_metrics(system)) - before,
            memory=watch.most,
            replaced=[name for name, pid in pids.items() if now.get(name) != pid],
        )


def _new_key(system: System) -> str:
    """Return a key of a new tenant, which has the limits of the configuration document."""
    with system.admin() as admin:
        admin.post("/admin/tenants", json={"id": "amplifier"}).raise_for_status()
        made: Any = admin.post("/admin/keys", json={"tenant": "amplifier"}).raise_for_status()
        return str(made.json()["key"])


def _pids(system: System) -> dict[str, int]:
    found = [process for process in system.processes() if process.role in _ROLES]
    return {f"{process.role} {process.index}": process.pid for process in found}


def _metrics(system: System) -> str:
    """Return the metrics of the gateway and of every backend."""
    backends = [f"{process.address}/metrics" for process in system.processes("backend")]
    with system.admin() as admin:
        return "".join(admin.get(url).raise_for_status().text for url in ("/metrics", *backends))


def held_timers(page: str) -> Counter[str]:
    """Return how many timers of each role were over 100 ms late since the start.

    The time during which the loop's thread waited for a core does not count.
    """
    late = Counter[str]()
    for is_backend, edge, count in _TIMERS.findall(page):
        timers = int(float(count))
        late["backend" if is_backend else "gateway"] += timers if edge == "+Inf" else -timers
    return late


def show(observed: Observed) -> None:
    """Print the result of a run."""
    answers = observed.answers
    print_answers(Counter((answer.kind, answer.status) for answer in answers))
    largest = max(answers, key=lambda answer: answer.received)
    expanded = max(answers, key=lambda answer: answer.received / max(answer.sent, 1))
    print(f"\nlargest answer: {largest.received:,} bytes ({largest.kind})")
    print(f"largest expansion: {expanded.sent:,} to {expanded.received:,} bytes ({expanded.kind})")
    for when, latencies in (("before", observed.calm_hits), ("meanwhile", observed.hits)):
        p50, p99, longest = (percentile(latencies, share) * 1e3 for share in (0.5, 0.99, 1.0))
        print(
            f"{len(latencies)} hits of another customer {when}: median {p50:.1f} ms,"
            f" p99 {p99:.1f} ms, longest {longest:.1f} ms"
        )
    for name, most in sorted(observed.memory.items()):
        print(f"{name}: {most // 1024**2} MiB of {_BOUND // 1024**2}")


def findings(observed: Observed) -> Iterator[str]:
    """Yield the faults of a run."""
    for role, held in observed.held.items():
        yield f"{held} times the event loop of a {role} was held for more than 100 ms"
    if (p99 := percentile(observed.hits, 0.99)) > _MOST_HIT_P99:
        yield f"the p99 of another customer's hits was {p99 * 1e3:.1f} ms"
    for name, most in sorted(observed.memory.items()):
        if most > _BOUND:
            yield f"{name} took {most:,} bytes; its bound is {_BOUND:,}"
    for name in observed.replaced:
        yield f"{name} was replaced"
    statuses = Counter((answer.kind, answer.status) for answer in observed.answers)
    for (kind, status), count in sorted(statuses.items()):
        if status in _FAULTS:
            yield f"{count} requests ({kind}) ended with {status}"
