"""Defines the faults of the chaos matrix: how each is injected into backends and undone."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from loadtests.chaos.proxy import SOUND, ProxyFault
from loadtests.chaos.system import PacedBackend

Act = Callable[[PacedBackend], Awaitable[None]]


class BackendFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault by `name`: how it comes, and how it goes."""

    name: str
    strike: Act
    mend: Act


async def strike(disaster: BackendFault, victims: Sequence[PacedBackend]) -> None:
    """Let it come over all of them at once."""
    await asyncio.gather(*map(disaster.strike, victims))


async def mend(disaster: BackendFault, victims: Sequence[PacedBackend]) -> None:
    """Undo it."""
    await asyncio.gather(*map(disaster.mend, victims))


def _proxied(name: str, fault: ProxyFault) -> BackendFault:
    async def come(backend: PacedBackend) -> None:
        await backend.proxy.become(fault)

    async def go(backend: PacedBackend) -> None:
        await backend.proxy.become(SOUND)

    return BackendFault(name=name, strike=come, mend=go)


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
    """A revision stays."""


DISASTERS = (
    BackendFault(name="kill -9", strike=_kill, mend=_start),
    BackendFault(name="SIGSTOP", strike=_stop, mend=_continue),
    _proxied("2 s latency", ProxyFault(latency=2.0)),
    _proxied("30 % errors", ProxyFault(errors=0.3)),
    _proxied("refused", ProxyFault(refuses=True)),
    _proxied("half-open", ProxyFault(silent=True)),
    BackendFault(name="mixed revisions", strike=_change, mend=_leave),
)
