"""Sends the requests of many callers to a system at any address.

Run it as `python -m loadtests.scenarios NAME`.
"""

import contextlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any  # Any: the values of options
from urllib.parse import urlsplit

import click
import httpx

from loadtests.scenarios import k6
from loadtests.scenarios.catalogue import SCENARIOS, Options
from loadtests.scenarios.run import run_scenario
from loadtests.scenarios.system import local_system
from loadtests.scenarios.workload import templates

_OUT = Path(__file__).parents[2] / "build" / "load"
_TENANTS = 3
_REGIONS = {True: ("eu", "us"), False: ("eu",)}
"""Regions of a local system. A scenario that kills a backend needs two regions, so that one region
still serves."""


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
@click.option(
    "--texts",
    type=click.IntRange(1, 1_000_000),
    default=20_000,
    help="Number of texts that repeat.",
)
@click.option("--model", "models", multiple=True, help="Send requests only to this model.")
@click.option("--seed", type=click.IntRange(min=0), default=1, help="Seed of the requests.")
@click.option(
    "--price", type=click.FloatRange(min=0), default=0.1, help="Price of all machines for an hour."
)
@click.option("--most-in-flight", type=_COUNT, default=1000, help="Bound of requests in flight.")
@click.option("--insecure", is_flag=True, help="Do not check certificates.")
@click.option("--out", type=_FOLDER, help="Folder of the report; default: in build/load.")
def scenarios_command(
    *,
    scenario: str,
    url: str | None,
    paced: bool,
    key_file: Path | None,
    models: tuple[str, ...],
    out: Path | None,
    **given: Any,
) -> None:
    """Send an open-loop load, and write a report with plots."""
    _check(scenario, url=url, is_paced=paced, key_file=key_file)
    folder = out or _OUT / f"{scenario}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    options = Options(scenario=scenario, folder=folder.absolute(), **given)
    with contextlib.ExitStack() as stack:
        local = None
        if url is None:
            click.echo("starting a system on this machine")
            scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            regions = _REGIONS[SCENARIOS[scenario].has_faults]
            started = local_system(
                Path(stack.enter_context(scratch)),
                tenants=_TENANTS,
                regions=regions,
                is_paced=paced,
            )
            local = stack.enter_context(started)
        address = local.system.url if local else (url or "").rstrip("/")
        keys = local.keys if local else _read_keys(key_file)
        served = _served(address, keys, is_insecure=options.insecure)
        kinds = tuple(templates(served, only=models))
        if not kinds:
            raise click.ClickException(f"{address} serves none of these models: {models}")
        core = local.generator_core if local else None
        load = k6.Load(options=options, url=address, keys=keys, kinds=kinds, core=core)
        holds = run_scenario(load, local=local)
    sys.exit(0 if holds else 1)


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
    if url and (urlsplit(url).scheme not in {"http", "https"} or "@" in urlsplit(url).netloc):
        raise click.UsageError("`--url` is like https://gateway.example.com, without a user's name")


def _read_keys(path: Path | None) -> tuple[str, ...]:
    lines = path.read_text(encoding="utf-8").split() if path else []
    if not lines:
        raise click.ClickException(f"{path} holds no key: write one in each line")
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise click.ClickException(f"{path} holds what is no key")
    return tuple(lines)


def _served(url: str, keys: Sequence[str], *, is_insecure: bool) -> Mapping[str, Sequence[str]]:
    """Return the models that all keys may use, with the tasks of each."""
    found: list[dict[str, Sequence[str]]] = []
    for number, key in enumerate(keys, 1):
        headers = {"authorization": f"Bearer {key}"}
        try:
            answer = httpx.get(
                f"{url}/v1/models", headers=headers, timeout=10, verify=not is_insecure
            )
        except httpx.HTTPError as error:
            raise click.ClickException(f"{url} does not answer: {error}") from error
        if answer.status_code != 200:
            said = f"answers {answer.status_code} to key {number} of --key-file"
            raise click.ClickException(f"{url}/v1/models {said}")
        try:
            found.append({model["name"]: model["tasks"] for model in answer.json()["data"]})
        except (ValueError, KeyError, TypeError) as error:
            raise click.ClickException(f"{url} is no Sluicegate: check --url") from error
    return {name: tasks for name, tasks in found[0].items() if all(name in each for each in found)}
