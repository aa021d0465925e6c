"""Sends the requests of many callers to a system at any address.

Run it as `python -m loadtests.scenarios NAME`.
"""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any  # Any: click checks the values

import click
import httpx

from loadtests.measured import demo_models
from loadtests.scenarios import k6
from loadtests.scenarios.analysis import verdicts
from loadtests.scenarios.catalogue import SCENARIOS
from loadtests.scenarios.run import run_scenario
from loadtests.scenarios.system import generator_core, local_system
from loadtests.scenarios.workload import templates

_OUT = Path(__file__).parents[2] / "build" / "load"
_QUESTIONS = "\n".join(f"{name}: {one.question}" for name, one in SCENARIOS.items())
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)
_POSITIVE, _COUNT = click.FloatRange(min=0.05), click.IntRange(min=1)


@click.command("scenarios", epilog=f"\b\n{_QUESTIONS}", context_settings={"show_default": True})
@click.argument("scenario", type=click.Choice(list(SCENARIOS)))
@click.option("--url", help="Address of the system. Without it, one is started on this machine.")
@click.option("--paced", is_flag=True, help="Without --url: models take time but no core.")
@click.option("--key-file", type=_FILE, help="File of API keys for --url, one a line.")
@click.option(
    "--rate",
    type=_POSITIVE,
    help="Requests a second. Default: a share of the capacity, which is measured.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=2), help="Seconds of all phases except the warm-up."
)
@click.option("--deadline", type=_POSITIVE, default=1.0, help="Seconds that callers wait.")
@click.option(
    "--zipf",
    type=click.FloatRange(min=0),
    help="Exponent of Zipf's law by which texts repeat; 0: no text repeats.",
)
@click.option("--model", "models", multiple=True, help="Send requests only to this model.")
@click.option("--most-in-flight", type=_COUNT, default=1000, help="Bound of requests in flight.")
@click.option("--out", type=_FOLDER, help="Folder of the report; default: in build/load.")
def scenarios_command(
    *,
    scenario: str,
    url: str | None,
    paced: bool,
    key_file: Path | None,
    deadline: float,
    models: tuple[str, ...],
    most_in_flight: int,
    out: Path | None,
    **given: Any,
) -> None:
    """Send an open-loop load, and write a report."""
    has_faults = SCENARIOS[scenario].has_faults
    _check(scenario, url=url, is_paced=paced, key_file=key_file)
    folder = out or _OUT / f"{scenario}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    with contextlib.ExitStack() as stack:
        system, core = None, None
        if url is None or key_file is None:
            click.echo("starting a system on this machine")
            # If a backend is killed, the other region still serves.
            regions = ("eu", "us") if has_faults else ("eu",)
            built = stack.enter_context(demo_models())
            started = local_system(built.parent, built, regions=regions, is_paced=paced)
            system, keys = stack.enter_context(started)
            url, core = system.url, generator_core()
        else:
            keys = tuple(key_file.read_text(encoding="utf-8").split())
            if not keys or not all(key.isascii() and key.isprintable() for key in keys):
                raise click.ClickException(f"{key_file}: write a key in each line")
        url = url.rstrip("/")
        kinds = tuple(templates(_served(url, keys), only=models))
        if not kinds:
            raise click.ClickException(f"{url} serves none of these models: {models}")
        load = k6.Load(
            folder=folder.absolute(),
            url=url,
            keys=keys,
            kinds=kinds,
            deadline=deadline,
            most_in_flight=most_in_flight,
            core=core,
        )
        run = run_scenario(scenario, load, system=system, **given)
    sys.exit(0 if all(verdict.holds for verdict in verdicts(run)) else 1)


def _check(scenario: str, *, url: str | None, is_paced: bool, key_file: Path | None) -> None:
    """Refuse wrong arguments before anything starts."""
    k6.program()
    if url and is_paced:
        raise click.UsageError("`--url` excludes `--paced`")
    if url and SCENARIOS[scenario].has_faults:
        raise click.UsageError(
            f"`{scenario}` kills processes: only on this machine, without `--url`"
        )
    if bool(url) != bool(key_file):
        raise click.UsageError("`--url` and `--key-file` belong together")


def _served(url: str, keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return the models that all keys may use, with the tasks of each."""
    found: list[dict[str, Sequence[str]]] = []
    for number, key in enumerate(keys, 1):
        headers = {"authorization": f"Bearer {key}"}
        try:
            answer = httpx.get(f"{url}/v1/models", headers=headers, timeout=10).raise_for_status()
            found.append({model["name"]: model["tasks"] for model in answer.json()["data"]})
        # A wrong address may answer with anything.
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            raise click.ClickException(f"{url}/v1/models, key {number}: {error}") from error
    return {name: tasks for name, tasks in found[0].items() if all(name in each for each in found)}


if __name__ == "__main__":
    scenarios_command()
