"""Reloads the list of served models when their version changes.

A reload can take long. It runs in its own task, so that configuration changes do not wait for it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Self

from sluicegate.gateway.errors import DependencyUnavailable, GatewayError
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import RELOAD_TIMEOUT, Topic

_log = logging.getLogger(__name__)


class ModelsFollower:
    """Reloads the list of models if there is a newer version, and then acknowledges the version.

    Before the acknowledgement, it sends a heartbeat. `report` returns the heartbeat's JSON, which
    lists the served models.
    """

    def __init__(
        self,
        *,
        control: Control,
        worker: str,
        reload: Callable[[], Awaitable[None]],
        report: Callable[[], bytes] = lambda: b"{}",
    ) -> None:
        self._control = control
        self._worker = worker
        self._reload = reload
        self._report = report
        self._requested: int | None = None
        self._is_first = False
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._follow())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # A command of redis-py may swallow the cancellation.
        self._is_stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def on_version(self, version: int) -> None:
        """Reload if `version` has changed.

        After the first call, reload only if somebody may still wait for this version.
        """
        if version != self._requested:
            self._is_first = self._requested is None
            self._changed.set()
        self._requested = version

    async def _follow(self) -> None:
        while not self._is_stopping:
            await self._changed.wait()
            self._changed.clear()
            version, outcome = self._requested or 0, "ok"
            if self._is_first and not await self._is_recent(version):
                continue
            try:
                await self._reload()
            except GatewayError as error:
                outcome = error.detail
            except Exception as error:  # noqa: BLE001 - later changes must still be applied
                _log.exception("the models could not be reloaded")
                outcome = f"the worker failed to apply them: {type(error).__name__}"
            # If Redis cannot be reached, `RuntimeFollower` sends both again.
            self._control.note(self._worker, Topic.MODELS, version, outcome)
            with contextlib.suppress(DependencyUnavailable):
                await self._control.heartbeat(self._worker, self._report())
                await self._control.acknowledge(self._worker, Topic.MODELS, version, outcome)

    async def _is_recent(self, version: int) -> bool:
        """Return whether an operator may still wait until `version` is acknowledged."""
        with contextlib.suppress(DependencyUnavailable):
            return version > (await self._control.server_time() - RELOAD_TIMEOUT) * 1e6
        return False
