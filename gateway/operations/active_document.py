"""Reads the active configuration document for operators, and caches it."""

import asyncio
from typing import TYPE_CHECKING

from sluicegate.gateway.config.document import Document
from sluicegate.gateway.config.load import load_folder, load_sources
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.settings import Settings

if TYPE_CHECKING:  # see `gateway.operations.context`
    from sluicegate.gateway.runtime.control import Control


class ActiveDocumentReader:
    """Reads the active document from Redis.

    If Redis cannot be reached, it returns the document that it read last, or reads the
    configuration folder.
    """

    def __init__(self, *, control: "Control", settings: Settings) -> None:
        self._control = control
        self._settings = settings
        self._generation = -1
        self._document: Document | None = None

    async def document(self) -> Document:
        """Return the active document.

        Raises:
            ConfigurationError: no document was read from Redis yet, and the folder is not valid.
        """
        try:
            active = await self._control.active()
        except DependencyUnavailable:
            active = None
        placement = self._settings.placement
        if active is not None and active.generation != self._generation:
            self._document = await asyncio.to_thread(
                load_sources, active.sources, placement=placement
            )
            self._generation = active.generation
        if self._document is None:
            return await asyncio.to_thread(load_folder, self._settings.config, placement=placement)
        return self._document
