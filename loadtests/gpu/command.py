"""Runs each GPU section in a process of its own, within its time: `python -m loadtests.gpu`."""

import contextlib
import importlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import click
import msgspec

from backends.settings import Provider
from loadtests.gpu.plan import BUDGETS, SECTIONS, Options, Section, pack, sections_in_order
from loadtests.gpu.results import (
    FILE,
    UNFINISHED,
    Journal,
    SectionState,
    known_figures,
    open_report,
    read_report,
    render,
)

_ROOT = Path(__file__).parents[2]
_OUT_OF_TIME = 124
# With less time left, a section is not started.
_LEAST_SECONDS = 15.0
# The function of each section, imported in its own process: sections need different packages.
_PLACES: dict[Section, tuple[str, str]] = {
    "check": ("loadtests.gpu.correctness", "check"),
    "gateway-small": ("loadtests.gpu.full_path", "small"),
    "gateway-large": ("loadtests.gpu.full_path", "large"),
    "session": ("loadtests.gpu.sessions", "session"),
    "pytorch": ("loadtests.gpu.torch_side", "pytorch"),
    "tensorrt": ("loadtests.gpu.sessions", "tensorrt"),
    "engine": ("loadtests.gpu.engine", "engine"),
    "peer": ("loadtests.gpu.torch_side", "peer"),
}
_RUNTIMES = ("onnxruntime-gpu", "onnxruntime", "tensorrt-cu13", "torch", "transformers")


@click.command("gpu")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder for the results; a run that was cut short goes on in it.",
)
@click.option("--only", multiple=True, type=click.Choice(SECTIONS), help="Sections, done again.")
@click.option("--within", default=780.0, show_default=True, help="Seconds of the whole run.")
@click.option("--provider", type=click.Choice(get_args(Provider)), default="cuda")
@click.option("--tiny", is_flag=True, help="Toy models and short runs: does it all work?")
@click.option("--seconds", default=4.0, show_default=True, help="Of each timed run.")
@click.option("--workers", default=0, help="Gateway processes. [default: 3 of 8 cores]")
def gpu_command(only: Sequence[Section], output: Path, within: float, **given: object) -> None:
    """Check a GPU's answers, then measure the figures, the most important missing ones first."""
    until = time.monotonic() + within
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sluicegate-gpu-") as folder:
        settings = {"output": output.absolute(), "work": Path(folder)} | given
        options = msgspec.convert(settings, Options)
        if options.tiny:
            options = msgspec.structs.replace(options, seconds=min(options.seconds, 0.5))
        report = open_report(options, only, _runtimes())
        options = msgspec.structs.replace(options, known=tuple(known_figures(report)))
        for section in only or sections_in_order(options.known):
            budget = min(BUDGETS[section], until - time.monotonic())
            if budget < _LEAST_SECONDS:
                print(f"{section}: no time is left; the same command goes on with it", flush=True)
                continue
            print(f"{section}: up to {budget:.0f} s", flush=True)
            state = in_process(options, section, budget)
            print(f"{section}: {state.status} in {state.took:.1f} s {state.reason}", flush=True)
    found = read_report(output / FILE)
    text = render(found or report)
    (output / "gpu.md").write_text(text + "\n")
    print(f"\n{text}")


def in_process(options: Options, section: Section, budget: float) -> SectionState:
    """Run a section in a process of its own, and again in another if that one dies.

    The next one goes on after what was being measured, as long as each gets any further.
    """
    started = time.perf_counter()
    count = -1
    state = SectionState(status="out of time", reason="it was not finished")
    while (left := budget - (time.perf_counter() - started)) > 0:
        status = _run_child(options, section, left)
        journal = Journal(options)
        if status == 0:
            state = journal.report.sections[section]
            break
        if status == _OUT_OF_TIME:
            _forget_unfinished(journal)
            break
        state = SectionState(status="failed", reason=f"it ended with {status}; see {section}.log")
        if len(journal.report.figures) == count:
            break
        count = len(journal.report.figures)
    _keep_logs(options)
    took = round(time.perf_counter() - started, 1)
    state = msgspec.structs.replace(state, took=took)
    Journal(options).close(section, state)
    return state


def _keep_logs(options: Options) -> None:
    """Copy the logs of `up` and its processes to the results."""
    for logs in options.work.glob("up-*/up/logs"):
        target = options.output / logs.parents[1].name
        shutil.copytree(logs, target, dirs_exist_ok=True)
        shutil.copy(logs.parents[1] / "up.out", target)


def _forget_unfinished(journal: Journal) -> None:
    """Drop the figure that ran out of time, so that the next run measures it."""
    for figure in journal.report.figures:
        if figure.note == UNFINISHED:
            journal.drop(figure.what)


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
        # This also ends the processes that it started: they share its session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return child.returncode


def run_section(section: Section, options: Options) -> SectionState:
    """Run a section here; a package that is missing skips it, with its name."""
    module, name = _PLACES[section]
    try:
        run: Callable[[Options], SectionState] = getattr(importlib.import_module(module), name)
        return run(options)
    except ModuleNotFoundError as error:
        reason = f"the package `{error.name}` is not installed"
        return SectionState(status="skipped", reason=reason)


def _runtimes() -> str:
    """Return the versions of the installed runtimes."""
    found = []
    for name in _RUNTIMES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(found)
