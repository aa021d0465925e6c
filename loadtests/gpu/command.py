"""Runs each GPU section in a process with a time limit: `python -m loadtests.gpu`."""

import contextlib
import importlib
import importlib.metadata
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from backends.settings import Provider
from loadtests.gpu.plan import SECTIONS, Options
from loadtests.gpu.results import UNFINISHED, Journal, SectionState, render

# If less time than this is left, a section is not started.
_LEAST_SECONDS = 15.0
_RUNTIMES = ("onnxruntime-gpu", "onnxruntime", "tensorrt-cu13", "torch", "transformers")


@click.command("gpu")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of the results. The same folder continues a run.",
)
@click.option(
    "--only", multiple=True, type=click.Choice([*SECTIONS]), help="Measure this section again."
)
@click.option(
    "--within", default=780.0, show_default=True, help="Bound of the whole run, in seconds."
)
@click.option("--provider", type=click.Choice(get_args(Provider)), default="cuda")
@click.option("--tiny", is_flag=True, help="Dry run with toy models.")
@click.option("--seconds", default=4.0, show_default=True, help="Length of each timed run.")
@click.option("--workers", default=0, help="Gateway processes. [default: 3 of 8 cores]")
def gpu_command(
    only: Sequence[str],
    output: Path,
    within: float,
    seconds: float,
    tiny: bool,  # noqa: FBT001 - click passes it
    **given: Any,  # click checks the values
) -> None:
    """Check whether a GPU computes correctly, then measure the most important figures first."""
    until = time.monotonic() + within
    output.mkdir(parents=True, exist_ok=True)
    seconds = min(seconds, 0.5) if tiny else seconds
    with tempfile.TemporaryDirectory(prefix="sluicegate-gpu-") as folder:
        options = Options(
            output=output.absolute(), work=Path(folder), seconds=seconds, tiny=tiny, **given
        )
        Journal.begin(options, _runtimes(), again=only)
        for section in only or SECTIONS:
            budget = min(options.budget(section), until - time.monotonic())
            if budget < _LEAST_SECONDS:
                print(f"{section}: no time is left; the same command goes on with it", flush=True)
                continue
            print(f"{section}: up to {budget:.0f} s", flush=True)
            state = supervise(section, options, budget)
            print(f"{section}: {state.status} in {state.took:.1f} s {state.reason}", flush=True)
    text = render(Journal(output).report)
    (output / "gpu.md").write_text(text + "\n")
    print(f"\n{text}")


def supervise(section: str, options: Options, budget: float) -> SectionState:
    """Run a section in a process, and start another process each time a process dies.

    The next process continues after the figure at which its predecessor died. The section ends when
    a process dies before it has finished a figure.
    """
    started, count = time.perf_counter(), -1
    state = SectionState(status="out of time", reason="it was not finished")
    while (left := budget - (time.perf_counter() - started)) > 0:
        status = _run_process(section, options, left)
        journal = Journal(options.output)
        if status == 0:
            state = journal.report.sections[section]
            break
        figures = journal.report.figures
        if status is None:
            # The next run of the command measures what was left for lack of time.
            for name in [name for name, each in figures.items() if each.note == UNFINISHED]:
                journal.put(name, None)
            break
        state = SectionState(status="failed", reason=f"it ended with {status}; see {section}.log")
        if len(figures) == count:
            break
        count = len(figures)
    for logs in options.work.glob("up-*/up/logs"):
        folder = logs.parents[1]
        shutil.copytree(logs, options.output / folder.name, dirs_exist_ok=True)
        shutil.copy(folder / "up.out", options.output / folder.name)
    took = round(time.perf_counter() - started, 1)
    state = SectionState(status=state.status, reason=state.reason, took=took)
    Journal(options.output).close(section, state)
    return state


def _run_process(section: str, options: Options, left: float) -> int | None:
    """Run one process of a section; return its status, or `None` if the time ran out."""
    child = multiprocessing.get_context("spawn").Process(target=_begin, args=(section, options))
    child.start()
    try:
        child.join(left)
        return child.exitcode
    finally:
        # This also ends processes that the section started, since they are in its session.
        if child.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        child.kill()
        child.join()


def _begin(section: str, options: Options) -> None:
    """Begin a section in this process, which leads a session and writes the section's log."""
    os.setsid()
    with (options.output / f"{section}.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    state = run_section(section, options)
    Journal(options.output).close(section, state)


def run_section(section: str, options: Options) -> SectionState:
    """Run a section in this process; skip it if a package is missing, and name the package."""
    try:
        module = importlib.import_module(f"loadtests.gpu.{SECTIONS[section].module}")
        run: Callable[[Options, str], SectionState] = module.run
        return run(options, section)
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
