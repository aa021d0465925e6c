"""Runs the operators' listener with the console."""

import asyncio

from sluicegate.gateway.admin.operator_directory import OperatorDirectory
from sluicegate.gateway.admin.serve import serve_admin
from sluicegate.gateway.console.console import Console
from sluicegate.gateway.settings import Settings


async def serve_operators(settings: Settings, *, stop: asyncio.Event) -> None:
    """Serve operators' requests until `stop` is set.

    Raises:
        ConfigurationError: the admin key is missing, or the address cannot be bound.
    """

    def extend(directory: OperatorDirectory) -> Console:
        return Console(settings=settings, directory=directory)

    await serve_admin(settings, stop=stop, extend=extend)
