"""Defines the faults of the chaos matrix: how each is injected into backends and undone."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from loadtests.chaos.system import PacedBackend
from loadtests.faults.proxy import SOUND, ProxyFault

Act = Callable[[PacedBackend], Awaitable[None]]


class BackendFault(msgspec.Struct, frozen=True, kw_only=True):
    """A named fault with the actions that inject and undo it."""

    name: str
    inject: Act
    undo: Act


async def inject(fault: BackendFault, victims: Sequence[PacedBackend]) -> None:
    """Inject the fault into all `victims` at once."""
    await asyncio.gather(*map(fault.inject, victims))


async def undo(fault: BackendFault, victims: Sequence[PacedBackend]) -> None:
    """Undo the fault in all `victims` at once."""
    await asyncio.gather(*map(fault.undo, victims))


def _proxied(name: str, fault: ProxyFault) -> BackendFault:
    async def begin(backend: PacedBackend) -> None:
        await backend.proxy.set_fault(fault)

    async def end(backend: PacedBackend) -> None:
        await backend.proxy.set_fault(SOUND)

    return BackendFault(name=name, inject=begin, undo=end)


async def _kill(backend: PacedBackend) -> None:
    backend.kill()


async def _start(backend: PacedBackend) -> None:
    backend.start()
    await backend.ready()


async def _stop(backend: PacedBackend) -> None:
    backend.signal(signal.SIGSTOP)


async def _continue(backend: PacedBackend) -> None:
    backend.signal(signal.SIGCONT)


async def _change(backend: PacedBackend) -> None:
    await backend.change_revision()


async def _leave(_: PacedBackend) -> None:
    """Do nothing: a revision stays."""


BACKEND_FAULTS = (
    BackendFault(name="kill -9", inject=_kill, undo=_start),
    BackendFault(name="SIGSTOP", inject=_stop, undo=_continue),
    _proxied("2 s latency", ProxyFault(latency=2.0)),
    _proxied("30 % errors", ProxyFault(errors=0.3)),
    _proxied("refused", ProxyFault(refuses=True)),
    _proxied("half-open", ProxyFault(silent=True)),
    BackendFault(name="mixed revisions", inject=_change, undo=_leave),
)
