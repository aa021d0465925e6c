"""`sluicegate models`: the model repository. All but `reload` is work of the backends' package."""

import click

from gateway.cli.admin_client import AdminClient, admin_options
from gateway.cli.config import JSON, print_json
from gateway.cli.processes import PASS_ON, become
from gateway.supervisor.errors import ExitCode

# The listener itself waits a minute for every worker.
_PATIENCE = 90.0
_PASSED_ON = {
    "check": "Load every model and run it once.",
    "import": "Import a Hugging Face folder.",
    "list": "List what a backend would serve.",
    "tune": "Measure a model, or make a faster variant of it.",
}


@click.group()
def models() -> None:
    """Look after a model repository."""


@models.command()
@admin_options
@JSON
def reload(*, client: AdminClient, as_json: bool) -> None:
    """Have every backend read its repository again; exit with 1 when not all workers know it.

    Once all of them do, no request is answered by a revision that was replaced.
    """
    answer = client.ask("POST", "/admin/models/reload", patience=_PATIENCE)
    if as_json:
        print_json(answer)
    else:
        for name, outcome in answer["workers"].items():
            click.echo(f"{name}: {outcome}")
    if not answer["live"]:
        raise SystemExit(ExitCode.FAILED)


def _pass_on(name: str, description: str) -> None:
    @models.command(name, context_settings=PASS_ON, add_help_option=False, short_help=description)
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        become("backends", "models", name, *arguments)


for _name, _description in _PASSED_ON.items():
    _pass_on(_name, _description)
