"""Holds what the command lines of serving and of the model tools share."""

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from sluicegate.backends.errors import StartProblem
from sluicegate.wire.importing import without_collections

_CANNOT_START = 2
MODELS_OPTION = click.option(
    "--models", type=click.Path(path_type=Path), help="Model repository directory."
)
MORE_MODELS_OPTION = click.option(
    "--more-models",
    type=click.Path(path_type=Path),
    help="A second repository. The first one takes precedence for models with the same name.",
)


# Characters that end a line, control a terminal, or change the direction of a text, and surrogates,
# which UTF-8 cannot carry.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class LazyGroup(click.Group):
    """Imports the module of a command only when the command is used.

    `lazy` maps the name of each such command to `module:attribute`.
    """

    def __init__(self, *arguments: Any, lazy: Mapping[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lazy = lazy

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._lazy})

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._lazy[cmd_name].partition(":")
        with without_collections():
            found: click.Command = getattr(importlib.import_module(module), name)
        return found


def say(line: str, *, err: bool = False) -> None:
    """Print a line. It may have texts of a checkpoint, so unprintable characters are replaced."""
    click.echo(_UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", line), err=err)


@contextmanager
def problems_on_one_line(command: str) -> Iterator[None]:
    """Print a `StartProblem` as one line and exit with status 2."""
    try:
        yield
    except StartProblem as error:
        say(f"sluicegate {command}: {error}", err=True)
        sys.exit(_CANNOT_START)
