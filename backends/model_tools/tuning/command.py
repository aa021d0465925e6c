"""Implements `models tune` and `models optimize`."""

import sys
from pathlib import Path
from typing import Any

import click

from sluicegate.backends.commands import MODELS_OPTION, say
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.tuning.options import (
    FILE,
    GateOptions,
    choose_variant,
    gate_options,
    needs_onnx,
    variant_options,
)
from sluicegate.backends.qualification.golden_texts import read_golden
from sluicegate.backends.settings import quiet_libraries, read_settings

_THREADS = click.option(
    "--threads", type=int, help="The most worker threads to try (0: one per core)."
)
_SECONDS = click.option(
    "--seconds", default=1.0, show_default=True, help="Seconds of each measurement."
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Write nothing to the repository.")
_READ_ONLY = "cannot record the setting: the model's folder is read-only"


@click.command(
    "tune",
    epilog="\b\nExample:\n  sluicegate models tune sentiment --models ./models --texts texts.csv",
)
@click.argument("name", metavar="MODEL")
@MODELS_OPTION
@_THREADS
@click.option("--texts", type=FILE, help="File of texts to measure with: one per line, or CSV.")
@_SECONDS
@click.option("--plot", type=FILE, help="File for the plot.  [default: tune-MODEL.svg]")
@variant_options
@_DRY_RUN
def tune_command(
    *,
    name: str,
    models: Path | None,
    threads: int | None,
    texts: Path | None,
    seconds: float,
    plot: Path | None,
    dry_run: bool,
    **variant: Any,
) -> None:
    """Find the best batch size and number of threads for MODEL on this machine.

    With --precision, the command makes a variant of MODEL in another precision instead. If the
    variant stays within the bounds, it becomes the newest revision. Otherwise, its measurements are
    printed and the exit code is 1.
    """
    wanted = choose_variant(**variant)
    settings = read_settings(models=models, threads=threads)
    quiet_libraries()
    if wanted is not None:
        with needs_onnx("--precision"):
            from sluicegate.backends.model_tools.tuning.optimize import make_variant  # noqa: PLC0415
        written = make_variant(settings, name, wanted, dry_run=dry_run, echo=say)
        if written is None:
            sys.exit(1)
        for folder in written:
            say(f"Wrote {folder}")
        return
    golden = None if texts is None else read_golden(texts).texts
    from sluicegate.backends.model_tools.tuning.reports import describe_sweep, plot_sweep  # noqa: PLC0415
    from sluicegate.backends.model_tools.tuning.speed import keep, tune_speed  # noqa: PLC0415

    sweep = tune_speed(settings, name, texts=golden, seconds=seconds)
    for line in describe_sweep(sweep):
        say(line)
    plot_sweep(sweep, plot or Path(f"tune-{name}.svg"), say)
    if not dry_run and not keep(sweep):
        say(_READ_ONLY, err=True)


@click.command(
    "optimize",
    epilog="\b\nExample:\n"
    "  sluicegate models optimize sentiment --models ./models --texts texts.csv",
)
@click.argument("name", metavar="MODEL")
@MODELS_OPTION
@_THREADS
@click.option("--texts", type=FILE, required=True, help="File of texts: one per line, or CSV.")
@click.option("--price", type=click.FloatRange(min=0), help="Price of the machine per hour.")
@_SECONDS
@click.option("--report", type=FILE, help="File for the report.  [default: optimize-MODEL.md]")
@gate_options
@_DRY_RUN
def optimize_command(
    *,
    name: str,
    models: Path | None,
    threads: int | None,
    texts: Path,
    price: float | None,
    seconds: float,
    report: Path | None,
    dry_run: bool,
    **limits: float,
) -> None:
    """Make MODEL as quick as this machine allows, and write a report.

    The command compares every precision that the device supports with fp32 on two thirds of the
    texts. The quickest variant within the bounds becomes the newest revision. Then the command
    finds the best batch size and number of threads for this revision.
    """
    settings = read_settings(models=models, threads=threads)
    quiet_libraries()
    with needs_onnx("models optimize"):
        from sluicegate.backends.model_tools.tuning.optimize import optimize  # noqa: PLC0415
        from sluicegate.backends.model_tools.tuning.reports import plot_sweep, write_report  # noqa: PLC0415
    page = report or Path(f"optimize-{name}.md")
    if not page.parent.is_dir():
        raise StartProblem(f"`--report {page}`: there is no folder `{page.parent}`")
    result = optimize(
        settings,
        name,
        texts=texts,
        limits=GateOptions.of(**limits),
        seconds=seconds,
        dry_run=dry_run,
        echo=say,
    )
    plot = page.with_suffix(".svg")
    is_drawn = plot_sweep(result.sweep, plot, say)
    content = write_report(result, price=price, plot=plot.name if is_drawn else None)
    try:
        page.write_text(content, encoding="utf-8")
    except OSError as error:
        raise StartProblem(f"cannot write `{page}`: {error.strerror}") from None
    for folder in result.written:
        say(f"Wrote {folder}")
    say(f"report: {page}")
