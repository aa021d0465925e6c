"""Runs each GPU section in a process of its own, within its time: `python -m loadtests.gpu`."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import get_args

import click
import msgspec

from backends.settings import Provider
from loadtests.gpu.plan import (
    BUDGETS,
    MAIN,
    SMALL,
    Options,
    Section,
    SectionResult,
    pack,
    read_result,
    write_result,
)
from loadtests.gpu.table import collect, render

_ROOT = Path(__file__).parents[2]
_OUT_OF_TIME = 124
# Where each section is. Imported in its own process: what one lacks, another may not need.
_PLACES: dict[Section, tuple[str, str]] = {
    "check": ("loadtests.gpu.sessions", "check"),
    "ceiling": ("loadtests.gpu.sessions", "ceiling"),
    "floor": ("loadtests.gpu.torch_side", "floor"),
    "engine": ("loadtests.gpu.engine", "engine"),
    "http": ("loadtests.gpu.full_path", "http"),
    "peer": ("loadtests.gpu.torch_side", "peer"),
}


@click.command("gpu")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder for the results; those of earlier runs in it count.",
)
@click.option("--only", multiple=True, type=click.Choice(get_args(Section)), help="Sections.")
@click.option("--provider", type=click.Choice(get_args(Provider)), default="cuda")
@click.option("--device", default=0, show_default=True)
@click.option("--served", type=click.Choice((MAIN, SMALL)), default=MAIN, help="By the whole path.")
@click.option("--tiny", is_flag=True, help="Toy models and short runs: does it all work?")
@click.option("--seconds", default=4.0, show_default=True, help="Of each timed run.")
@click.option("--rounds", default=3, show_default=True, help="Runs at least; the median counts.")
@click.option("--workers", default=8, show_default=True, help="Gateway processes.")
@click.option("--backends", default=1, show_default=True, help="Backend processes.")
@click.option("--clients", default=4, show_default=True, help="Load processes.")
@click.option("--connections", default=2048, show_default=True, help="Of all clients together.")
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), help="Keeps the models.")
def gpu_command(only: Sequence[Section], output: Path, work: Path | None, **given: object) -> None:
    """Measure a GPU: answers first, then the bare session, the engine, HTTP and a peer."""
    output.mkdir(parents=True, exist_ok=True)
    with _folder(work) as folder:
        settings = {"output": output.absolute(), "work": folder.absolute()} | given
        options = msgspec.convert(settings, Options)
        if options.tiny:
            options = msgspec.structs.replace(options, seconds=min(options.seconds, 0.5))
        for section in only or BUDGETS:
            print(f"{section}: up to {BUDGETS[section]:.0f} s", flush=True)
            result = in_process(options, section, BUDGETS[section])
            print(f"{section}: {result.status} in {result.took:.1f} s {result.reason}", flush=True)
    report = collect(options)
    (output / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    text = render(report)
    (output / "report.md").write_text(text + "\n")
    print(f"\n{text}")


def in_process(options: Options, section: Section, budget: float) -> SectionResult:
    """Run a section in a process of its own, and again in another if that one dies.

    The next one goes on after what was being measured, as long as each gets any further.
    """
    started = time.perf_counter()
    (options.output / f"{section}.json").unlink(missing_ok=True)
    result = SectionResult(section=section, status="failed", reason=f"see {section}.log")
    known = -1
    while (left := budget - (time.perf_counter() - started)) > 0:
        status = _run_child(options, section, left)
        result = read_result(options, section) or result
        if status == 0 or len(result.lines) == known:
            break
        known = len(result.lines)
        reason = f"it ended with {status}; see {section}.log"
        result = msgspec.structs.replace(result, status="failed", reason=reason)
    result = msgspec.structs.replace(result, took=round(time.perf_counter() - started, 1))
    write_result(options, result)
    return result


def _run_child(options: Options, section: Section, left: float) -> int:
    """Run one process of a section for the time that is left; return its status."""
    command = [sys.executable, "-m", "loadtests.gpu", section]
    with (options.output / f"{section}.log").open("ab") as log:
        child = subprocess.Popen(
            command,
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        child.communicate(pack(options), timeout=left)
    except subprocess.TimeoutExpired:
        return _OUT_OF_TIME
    finally:
        # With it, whatever it started: its processes are of its session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return child.returncode


def run_section(section: Section, options: Options) -> SectionResult:
    """Run a section here; a package that is missing skips it, with its name."""
    module, name = _PLACES[section]
    try:
        run: Callable[[Options], SectionResult] = getattr(importlib.import_module(module), name)
        return run(options)
    except ModuleNotFoundError as error:
        reason = f"the package `{error.name}` is not installed"
        return SectionResult(section=section, status="skipped", reason=reason)


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="sluicegate-gpu-") as name:
        yield Path(name)
