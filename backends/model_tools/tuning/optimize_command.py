"""Implements `models optimize`: publishes the quickest accepted variant, and writes a report."""

from pathlib import Path

import click

from backends.errors import StartProblem
from backends.model_tools.tuning.variant_options import GateOptions, gate_options, needs_onnx
from backends.settings import quiet_libraries, read_settings

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("optimize")
@click.argument("name", metavar="MODEL")
@click.option("--models", type=click.Path(path_type=Path), help="Model repository directory.")
@click.option("--threads", type=int, help="The most worker threads to try (0: one per core).")
@click.option("--texts", type=_FILE, required=True, help="File of texts: one per line, or CSV.")
@click.option("--price", type=click.FloatRange(min=0), help="Price of the machine per hour.")
@click.option("--seconds", default=1.0, show_default=True, help="Seconds of each measurement.")
@click.option("--report", type=_FILE, help="File for the report.  [default: optimize-MODEL.md]")
@gate_options
@click.option("--dry-run", is_flag=True, help="Write nothing to the repository.")
def optimize_command(
    *,
    name: str,
    models: Path | None,
    threads: int | None,
    texts: Path,
    price: float | None,
    seconds: float,
    report: Path | None,
    gate: GateOptions,
    dry_run: bool,
) -> None:
    """Make MODEL as quick as this machine allows, and write a report.

    The command compares every precision that the device supports with fp32 on two thirds of the
    texts. The quickest variant within the bounds becomes the newest revision. Then the command
    finds the best batch size and number of threads for this revision.
    """
    settings = read_settings(models=models, threads=threads)
    quiet_libraries()
    with needs_onnx("models optimize"):
        from backends.model_tools.tuning.optimize import optimize  # noqa: PLC0415
        from backends.model_tools.tuning.optimize_report import write_report  # noqa: PLC0415
        from backends.model_tools.tuning.sweep_report import NO_PLOT, draw_sweep  # noqa: PLC0415
    page = report or Path(f"optimize-{name}.md")
    if not page.parent.is_dir():
        raise StartProblem(f"`--report {page}`: there is no folder `{page.parent}`")
    result = optimize(
        settings,
        name,
        texts=texts,
        limits=gate,
        seconds=seconds,
        dry_run=dry_run,
        echo=click.echo,
    )
    plot = page.with_suffix(".svg")
    drawn = draw_sweep(result.sweep, plot)
    click.echo(f"plot: {plot}" if drawn else NO_PLOT)
    content = write_report(result, price=price, plot=plot.name if drawn else None)
    try:
        page.write_text(content, encoding="utf-8")
    except OSError as error:
        raise StartProblem(f"cannot write `{page}`: {error.strerror}") from None
    for folder in result.written:
        click.echo(f"Wrote {folder}")
    click.echo(f"report: {page}")
