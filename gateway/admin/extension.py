"""Defines how other packages add routes to the operators' listener."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from litestar import Router

from sluicegate.gateway.admin.operator_directory import OperatorDirectory


class Extension(Protocol):
    """Adds routes and a background task to the operators' listener.

    The routes' handlers can use the listener's dependencies.
    """

    @property
    def routers(self) -> Sequence[Router]:
        """The routes."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run the background task until `stop` is set. Raises no errors."""


Extend = Callable[[OperatorDirectory], Extension]
"""Creates an extension from the listener's directory of operators."""


class NoExtension:
    """Adds no routes."""

    routers: Sequence[Router] = ()

    async def run(self, stop: asyncio.Event) -> None:
        """Do nothing."""


def no_extension(_directory: OperatorDirectory) -> Extension:
    """Return an extension without routes."""
    return NoExtension()
