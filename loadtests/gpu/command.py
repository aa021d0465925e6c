"""Measures a GPU, each section in a process with a time limit: `python -m loadtests gpu`."""

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, get_args

import click

from loadtests.gpu.plan import SECTIONS, Options
from loadtests.gpu.results import Measurement, Measuring, Report, Section, begin, show_report, write
from sluicegate.backends.errors import ExecutorDied
from sluicegate.backends.executors.cuda import explain
from sluicegate.backends.settings import Provider

Figures = Callable[[Options, str, Report], Iterator[Measuring]]
"""The function `figures` of a section's module."""

# If less time than this is left, a section is not started.
_LEAST_SECONDS = 15.0


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
    **given: Any,  # click checks the values
) -> None:
    """Check whether a GPU computes correctly, then measure the most important figures first."""
    until = time.monotonic() + within
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sluicegate-gpu-") as folder:
        seconds = min(seconds, 0.5) if given["tiny"] else seconds
        options = Options(output=output.absolute(), work=Path(folder), seconds=seconds, **given)
        report = begin(options, again=only)
        for section in only or SECTIONS:
            found = report.sections.setdefault(section, Section())
            if found.status == "done":
                continue
            budget = min(options.budget(section), until - time.monotonic())
            if budget < _LEAST_SECONDS:
                print(f"{section}: no time is left; the same command goes on with it", flush=True)
                continue
            print(f"{section}: up to {budget:.0f} s", flush=True)
            _measure(section, options, report, time.monotonic() + budget)
            write(report, output)
            print(f"{section}: {found.status} {found.reason}", flush=True)
    show_report(report)


def _measure(section: str, options: Options, report: Report, until: float) -> None:
    """Measure the figures of a section that are missing, in a process.

    When the process dies, another process continues after the figure at which it died.
    """
    found = report.sections[section]
    is_ended = False
    while not is_ended:
        name = ""
        with _process(section, options, report, until) as receive:
            try:
                while name := receive():
                    found.figures[name] = Measurement(passed=False, note="its process died")
                    result = receive()
                    if result is None:
                        del found.figures[name]
                    else:
                        found.figures[name] = result
                    name = ""
                    write(report, options.output)
                found.status, found.reason = receive()
                is_ended = True
            except TimeoutError:
                found.figures.pop(name, None)
                found.status, found.reason = "unfinished", "out of time"
                is_ended = True
            except EOFError:
                found.status, found.reason = "failed", f"see {section}.log"
                is_ended = not name


@contextlib.contextmanager
def _process(
    section: str, options: Options, report: Report, until: float
) -> Iterator[Callable[[], Any]]:
    """Run a section in a process; yield a function that returns what the process sends.

    The function raises `TimeoutError` if nothing comes until `until`, and `EOFError` if the process
    has died.
    """
    results, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(
        target=_run, args=(section, options, report, sender)
    )
    child.start()
    sender.close()

    def receive() -> Any:
        if not results.poll(max(0.0, until - time.monotonic())):
            raise TimeoutError
        return results.recv()

    try:
        yield receive
    finally:
        # This also ends processes that the section started, since they are in its session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid or 0, signal.SIGKILL)
        child.kill()
        child.join()


def _run(section: str, options: Options, report: Report, sender: Connection) -> None:
    """Measure figures in this process, which leads a session and writes the section's log.

    Send the name of each figure and then its result. Send "" and the section's state at the end.
    """
    os.setsid()
    with (options.output / f"{section}.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    known = report.sections[section].figures
    state = "done", ""
    try:
        module = importlib.import_module(f"loadtests.gpu.{SECTIONS[section][0]}")
        figures: Figures = module.figures
        for name, measure in figures(options, section, report):
            if name not in known:
                sender.send(name)
                result = _result(measure)
                if result is not None:
                    known[name] = result
                sender.send(result)
    except ModuleNotFoundError as error:
        state = "skipped", f"the package `{error.name}` is not installed"
    if section == "check" and not any(
        each.passed and each.error is not None for each in known.values()
    ):
        state = "failed", "no form gives the right answers"
    sender.send("")
    sender.send(state)


def _result(measure: Callable[[], Measurement | None]) -> Measurement | None:
    """Measure a figure. An error fails only this figure; if the device has failed, end."""
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no other base
        if isinstance(explain(error), ExecutorDied):
            sys.exit(str(error))  # this process can run nothing any more
        first = str(error).strip().split("\n", 1)[0]
        text = " ".join(word.rpartition("/")[2] for word in first.split())  # without folders
        return Measurement(passed=False, note=f"{type(error).__name__}: {text[:200]}")
