"""Says what may be served on the operators' listener beside its own routes."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from litestar import Router

from gateway.admin.operator_directory import OperatorDirectory


class Extension(Protocol):
    """Has routes, whose handlers get the objects of the listener, and work beside them."""

    @property
    def routers(self) -> Sequence[Router]:
        """The routes."""

    async def run(self, stop: asyncio.Event) -> None:
        """Do what the routes need done, until `stop`; does not raise."""


Extend = Callable[[OperatorDirectory], Extension]
"""Makes the extension, of what else the listener is made of."""


class NoExtension:
    """Adds nothing."""

    routers: Sequence[Router] = ()

    async def run(self, stop: asyncio.Event) -> None:
        """Do nothing."""


def no_extension(_directory: OperatorDirectory) -> Extension:
    """Return what adds nothing."""
    return NoExtension()
