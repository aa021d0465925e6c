"""Declares the options that several benchmarks share."""

from collections.abc import Callable
from typing import Any, TypeVar  # Any: what click decorates

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Decorator = Callable[[_Command], _Command]

seed: _Decorator[Any] = click.option(
    "--seed", type=int, help="Seed of a run, to repeat it; random by default."
)

only: _Decorator[Any] = click.option(
    "--only", type=int, help="Send only the requests of this connection."
)


def rounds(default: int) -> _Decorator[Any]:
    """Return the option `--rounds`."""
    return click.option(
        "--rounds", default=default, help="Runs of each variant; the median counts."
    )


def duration(default: float, help_: str = "Seconds of each run.") -> _Decorator[Any]:
    """Return the option `--duration`."""
    return click.option("--duration", default=default, help=help_)
