"""Runs the drills from the command line: `python -m loadtests drills`."""

import sys
from pathlib import Path

import click

from loadtests.drills.blind import play_blind
from loadtests.drills.catalogue import DRILLS
from loadtests.drills.report import report
from loadtests.drills.results import add_play, read_plays, read_results, write_results
from loadtests.drills.run import run_drill

_DOCS = Path(__file__).parents[2] / "docs"
_PAGE, _PICTURES = _DOCS / "drills.md", _DOCS / "images/drills"

_LONGEST_PLAY = 600.0


@click.command("drills")
@click.option("--only", multiple=True, type=click.Choice([each.name for each in DRILLS]))
@click.option("--interval", default="15s", show_default=True, help="Of scrapes and rules.")
@click.option("--quiet", default=60.0, show_default=True, help="Seconds before the fault.")
@click.option("--limit", default=180.0, show_default=True, help="Most seconds of a fault.")
@click.option("--screenshots", is_flag=True, help="Write docs/drills.md with new pictures.")
@click.option("--page", is_flag=True, help="Write docs/drills.md of what was recorded.")
@click.option("--blind", is_flag=True, help="Inject one that is not named, and ask for the cause.")
@click.option("--operator", default="", help="What the operator of a blind drill knows.")
@click.option("--traces", type=click.Path(path_type=Path), default="build/drill-traces.txt")
def drills_command(
    *,
    only: tuple[str, ...],
    interval: str,
    quiet: float,
    limit: float,
    screenshots: bool,
    page: bool,
    blind: bool,
    operator: str,
    traces: Path,
) -> None:
    """Inject faults, and record which alerts fire when, and what an operator sees (root)."""
    drills = [each for each in DRILLS if not only or each.name in only]
    if blind:
        traces.parent.mkdir(parents=True, exist_ok=True)
        play = play_blind(
            drills,
            interval=interval,
            quiet=quiet,
            limit=_LONGEST_PLAY,
            traces=traces,
            operator=operator,
        )
        add_play(play)
        return
    results = read_results()
    silent = []
    for drill in [] if page else drills:
        pictures = _PICTURES if screenshots else None
        result = run_drill(drill, interval=interval, quiet=quiet, limit=limit, pictures=pictures)
        print(report([result], []), flush=True)
        results[drill.name] = result
        if not set(result.expected) & set(result.fired):
            silent.append(drill.name)
    if screenshots or page:
        write_results(results[each.name] for each in DRILLS if each.name in results)
        ordered = [results[each.name] for each in DRILLS if each.name in results]
        _PAGE.write_text(report(ordered, read_plays()))
    if silent:
        sys.exit(f"no expected alert fired: {', '.join(silent)}")
