"""Implements `sluicegate models`. Commands that work on a folder are in the package `backends`."""

import os
import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

import click

from sluicegate.gateway.cli.admin_client import AdminClient, admin_options, print_change
from sluicegate.gateway.cli.model_plans import rollback, shadow, split
from sluicegate.gateway.cli.processes import PASS_ARGUMENTS, become, run
from sluicegate.gateway.operations.models import reload_models

# The timeout is long, because the listener waits up to a minute for workers before it responds.
_TIMEOUT = 90.0
_BROKEN = "models_broken"
_RELOAD, _DATA_DIR = "--reload", "--data-dir"
_BACKEND_COMMANDS = {
    "calibrate": "Find when a cascade must ask its large model.",
    "check": "Load every model and run it once.",
    "compare": "Compare a model's results with transformers on a checkpoint.",
    "import": "Import a checkpoint, and show what the model does.",
    "list": "List the models that a backend would serve.",
    "optimize": "Find the fastest variant of a model for this machine, and report.",
    "push": "Push a repository to object storage or a registry.",
    "sync": "Make a repository equal to its copy in object storage or a registry.",
    "tune": "Measure a model, or make a faster variant of it.",
}


@click.command()
@admin_options
def reload(*, client: AdminClient, as_json: bool) -> None:
    """Make every backend reload its model repository.

    Exit with 1 if a model is broken, or if a worker does not know the new revisions yet. Once all
    workers know the new revisions, no request uses a replaced revision. If a model is broken, its
    former revision is still served.
    """
    answer = client.carry_out(reload_models, timeout=_TIMEOUT, accept_code=_BROKEN)
    print_change(answer, as_json=as_json, more=_show_backends)


def _show_backends(answer: Any) -> None:
    # A listener of an earlier version does not send `backends`.
    for name, backend in answer.get("backends", {}).items():
        _show(f"{backend['region']}/{name}", backend)


def _show(place: str, backend: dict[str, Any]) -> None:
    """Print the changed revisions and the broken models of a backend."""
    for model, change in backend["models"].items():
        if change["old"] != change["new"]:
            old, new = change["old"] or "(none)", change["new"] or "(none)"
            click.echo(f"{place}: {model} {old} -> {new}")
    for model, reason in backend["problems"].items():
        click.echo(f"{place}: {model} is broken: {reason}", err=True)


def _backend_command(name: str, description: str) -> click.Command:
    @click.command(
        name, context_settings=PASS_ARGUMENTS, add_help_option=False, short_help=description
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        if name != "import" or _RELOAD not in arguments:
            become("backends", "models", name, *arguments)
        own, of_reload = _divide(arguments)
        if code := run("backends", "models", name, *own):
            sys.exit(code)
        if "--json" in own:
            # The document of the import alone is on standard output.
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        become("gateway", "models", "reload", *of_reload)

    return command


def _divide(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide the arguments into those of the import and those of the reload after the import."""
    own: list[str] = []
    of_reload: list[str] = []
    rest = iter(arguments)
    for each in rest:
        if each == _DATA_DIR:
            of_reload += [each, *islice(rest, 1)]
        elif each.startswith(f"{_DATA_DIR}="):
            of_reload.append(each)
        elif each != _RELOAD:
            own.append(each)
    return own, of_reload


COMMANDS = (
    *(reload, split, shadow, rollback),
    *(_backend_command(name, text) for name, text in _BACKEND_COMMANDS.items()),
)
