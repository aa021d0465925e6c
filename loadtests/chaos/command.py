"""Runs the chaos matrix from the command line: `python -m loadtests chaos`."""

import click

from loadtests.chaos import matrix, scenes
from loadtests.machine import this_machine


@click.command("chaos")
@click.option("--quiet", default=15.0, show_default=True, help="Seconds before the fault.")
@click.option("--faulty", default=45.0, show_default=True, help="Seconds with it.")
@click.option("--only", multiple=True, help="Faults and scenes whose names begin so.")
@click.option("--scenes", "scenes_only", is_flag=True, help="Only the scenes beside the matrix.")
@click.option("--of", "extents", multiple=True, type=click.Choice(["one", "region"]))
def chaos_command(
    *,
    quiet: float,
    faulty: float,
    only: tuple[str, ...],
    extents: tuple[matrix.Extent, ...],
    scenes_only: bool,
) -> None:
    """Faults of one backend and of a region, under load."""
    if not scenes_only:
        matrix.measure(quiet=quiet, faulty=faulty, only=only, extents=extents)
    scenes.measure(only)
    print(this_machine())
