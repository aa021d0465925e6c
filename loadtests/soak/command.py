"""Runs the soak from the command line: `python -m loadtests soak`."""

import sys
import tempfile
from pathlib import Path

import click

from backends.model_tools.demo.build import build_demo_models
from loadtests.machine import this_machine
from loadtests.soak.run import SoakResult, findings, soak

_MIB = 1024 * 1024


@click.command("soak")
@click.option("--minutes", default=30.0, show_default=True)
@click.option("--every", default=5.0, show_default=True, help="Seconds between changes.")
@click.option("--look", default=2.0, show_default=True, help="Seconds between samples.")
def soak_command(*, minutes: float, every: float, look: float) -> None:
    """Run everything under mixed load and changes; find growth and wrong counts."""
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "demo-models"
        build_demo_models(models, progress=lambda _: None)
        result = soak(Path(folder), models=models, duration=60 * minutes, every=every, look=look)
    _show(result)
    if found := list(findings(result, is_long=True)):
        sys.exit("\n".join(found))


def _show(result: SoakResult) -> None:
    machine, wear = this_machine(), result.wear
    print(f"\n## {result.duration / 60:g} minutes under load\n\n{machine.headline}\n")
    print("| process | memory MiB | rise MiB | files | rise | threads | rise |")
    print("|---|---|---|---|---|---|---|")
    for name, memory in wear.memory.items():
        files, threads = wear.files[name], wear.threads[name]
        print(
            f"| {name} | {memory.median / _MIB:.1f} | {memory.rise / _MIB:+.1f}"
            f" | {files.median:.0f} | {files.rise:+.1f}"
            f" | {threads.median:.0f} | {threads.rise:+.1f} |"
        )
    print(f"\ntasks of the workers: {wear.tasks.median:.0f}, rise {wear.tasks.rise:+.1f}")
    print(f"event logs at most {wear.log_bytes / _MIB:.1f} MiB")
    print(f"the cache's Redis at most {wear.cache_bytes / _MIB:.1f} MiB")
    print(f"changes: {dict(result.changes)}")
    print(f"answered {result.answered}, left {result.left}, billed {result.billed}")
    for (kind, status), count in sorted(result.answers.items()):
        print(f"  {kind}: {status} x {count}")
