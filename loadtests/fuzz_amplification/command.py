"""Sends requests of the largest allowed size, and measures how they affect other callers."""

import click

from loadtests.fuzz_amplification.judging import Observed, findings, p99
from loadtests.fuzz_amplification.run import fuzz
from loadtests.fuzzing import end_with, print_answers, seeded_run
from loadtests.options import seed


@click.command("fuzz-amplification")
@click.option("--requests", default=100_000)
@click.option("--first", default=0, help="Number of the first request, to continue a run.")
@seed
def fuzz_amplification_command(*, requests: int, first: int, seed: int | None) -> None:
    """Send requests of the largest allowed size; report blocked event loops and exceeded bounds."""
    with seeded_run(seed) as (folder, chosen):
        observed = fuzz(folder, seed=chosen, numbers=range(first, first + requests))
    show(observed)
    end_with(findings(observed))


def show(observed: Observed) -> None:
    """Print the result of a run."""
    print_answers(observed.statuses)
    expansion, of_expansion = observed.largest_expansion
    answer, of_answer = observed.largest_answer
    print(f"\nlargest expansion: {expansion:,} bytes of answer a byte of request ({of_expansion})")
    print(f"largest answer: {answer:,} bytes ({of_answer})")
    for role, held in observed.held_timers.items():
        calm, late = observed.calm_late_timers[role], observed.late_timers[role]
        print(
            f"timers of {role}s that were over 100 ms late: {calm} before, {late} meanwhile,"
            f" {held} of these not for want of a core"
        )
    for when, times in (("before", observed.calm_hits), ("meanwhile", observed.hits)):
        hits = sorted(times)
        print(
            f"{len(hits)} hits of another customer {when}: median"
            f" {hits[len(hits) // 2] * 1e3:.1f} ms, p99 {p99(hits) * 1e3:.1f} ms,"
            f" longest {hits[-1] * 1e3:.1f} ms"
        )
    for name, most in sorted(observed.memory.items()):
        print(f"{name}: {most // 1024**2} MiB of {observed.bounds.get(name, 0) // 1024**2}")
