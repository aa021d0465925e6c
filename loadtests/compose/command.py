"""Checks the production layout as a whole: `python -m loadtests compose`."""

import sys

import click

from loadtests.arena import images, podman, topology
from loadtests.compose.check import PHASES, LayoutCheck
from loadtests.compose.releases import Release


@click.command("compose")
@click.option("--from", "ref", default="HEAD~1", show_default=True, help="The last release.")
@click.option("--requests", default=10_000, show_default=True, help="At least, during the losses.")
@click.option("--rate", default=30.0, show_default=True, help="Requests a second.")
@click.option("--phase", "phases", multiple=True, type=click.Choice(PHASES), help="Only these.")
@click.option("--only", multiple=True, help="Lose only these: names, or `network NAME`.")
@click.option("--build/--no-build", default=True, help="Build the images first.")
@click.option("--keep", is_flag=True, help="Leave containers, volumes and images.")
def compose_command(
    *,
    ref: str,
    requests: int,
    rate: float,
    phases: tuple[str, ...],
    only: tuple[str, ...],
    build: bool,
    keep: bool,
) -> None:
    """Run all of compose.yaml in containers: lose each, upgrade all, restore a backup.

    Needs root and podman; what has no image here is built from Debian's packages. Ends with 0
    only if everything held.
    """
    if lack := podman.missing():
        sys.exit(lack)
    podman.prepare()
    former, present = Release("former"), Release("present")
    if build:
        images.build_bases(anew=False)
        former.build(ref)
        present.build("")
    check = LayoutCheck(former, present)
    try:
        check.run(phases or PHASES, requests=requests, rate=rate, only=only)
    finally:
        if not keep:
            topology.remove(volumes=True)
            former.remove()
            present.remove()
    click.echo("\n".join(check.report()))
    if findings := check.findings():
        sys.exit("\n".join(["", "not everything went as it must:", *findings]))
