"""Defines `sluicegate models`: the commands that prepare, inspect and copy models."""

import click
from typing_extensions import override

from sluicegate.backends.commands import LazyGroup, problems_on_one_line

_COMMANDS = {
    "calibrate": "sluicegate.backends.model_tools.calibrating.command:calibrate_command",
    "check": "sluicegate.backends.model_tools.inspecting:check_command",
    "compare": "sluicegate.backends.model_tools.comparing.command:compare_command",
    "import": "sluicegate.backends.model_tools.importing.command:import_command",
    "list": "sluicegate.backends.model_tools.inspecting:list_command",
    "optimize": "sluicegate.backends.model_tools.tuning.command:optimize_command",
    "push": "sluicegate.backends.model_tools.syncing.command:push_command",
    "sync": "sluicegate.backends.model_tools.syncing.command:sync_command",
    "tune": "sluicegate.backends.model_tools.tuning.command:tune_command",
}


class _OneLineGroup(LazyGroup):
    """Prints the `StartProblem` of a command as one line."""

    @override
    def invoke(self, ctx: click.Context) -> object:
        with problems_on_one_line("models"):
            return super().invoke(ctx)


@click.group("models", cls=_OneLineGroup, lazy=_COMMANDS)
def models_group() -> None:
    """Inspect, import, tune and copy the models of a repository."""
