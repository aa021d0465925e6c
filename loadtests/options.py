"""Declares the options that several benchmarks share."""

from collections.abc import Callable
from typing import Any, TypeVar  # Any: what click decorates

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Decorator = Callable[[_Command], _Command]

connections: _Decorator[Any] = click.option("--connections", default=32, help="Callers at once.")

seed: _Decorator[Any] = click.option(
    "--seed", type=int, help="Do a run again; by default another each time."
)

only: _Decorator[Any] = click.option(
    "--only", type=int, help="Play only the connection of this number."
)


def rounds(default: int) -> _Decorator[Any]:
    """Return the option `--rounds`."""
    return click.option("--rounds", default=default, help="Runs of each; the median counts.")


def duration(default: float, help_: str = "Seconds of each run.") -> _Decorator[Any]:
    """Return the option `--duration`."""
    return click.option("--duration", default=default, help=help_)
