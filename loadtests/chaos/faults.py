"""The faults of the matrix: what is done to some backends, and how it is undone."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from loadtests.chaos.proxy import SOUND, Fault
from loadtests.chaos.system import PacedBackend

Act = Callable[[PacedBackend], Awaitable[None]]


class Disaster(msgspec.Struct, frozen=True, kw_only=True):
    """A fault by `name`: how it comes, and how it goes."""

    name: str
    strike: Act
    mend: Act


async def strike(disaster: Disaster, victims: Sequence[PacedBackend]) -> None:
    """Let it come over all of them at once."""
    await asyncio.gather(*map(disaster.strike, victims))


async def mend(disaster: Disaster, victims: Sequence[PacedBackend]) -> None:
    """Undo it."""
    await asyncio.gather(*map(disaster.mend, victims))


def _proxied(name: str, fault: Fault) -> Disaster:
    async def come(backend: PacedBackend) -> None:
        await backend.proxy.become(fault)

    async def go(backend: PacedBackend) -> None:
        await backend.proxy.become(SOUND)

    return Disaster(name=name, strike=come, mend=go)


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
    Disaster(name="kill -9", strike=_kill, mend=_start),
    Disaster(name="SIGSTOP", strike=_stop, mend=_continue),
    _proxied("2 s latency", Fault(latency=2.0)),
    _proxied("30 % errors", Fault(errors=0.3)),
    _proxied("refused", Fault(refuses=True)),
    _proxied("half-open", Fault(silent=True)),
    Disaster(name="mixed revisions", strike=_change, mend=_leave),
)
