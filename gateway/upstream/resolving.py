"""Names to addresses, off the event loop."""

import asyncio
import contextlib
import socket
import threading
from typing import Protocol

Addresses = tuple[str, ...]


class ResolutionFailed(Exception):
    """A name has no addresses, or nobody could say; the message says which."""


class Resolver(Protocol):
    """Looks names up. Cancelling is safe at any time."""

    async def addresses(self, host: str) -> Addresses:
        """Return every address of `host` once, IPv4 or IPv6, in any order; there is one at least.

        Takes as long as it takes: whoever asks bounds the wait.

        Raises:
            ResolutionFailed: there is none, or it cannot be known now.
        """
        ...


class SystemResolver:
    """As the operating system does it: its hosts file, search domains and name servers.

    It cannot be interrupted, so each look-up has a thread that nobody waits for at the end, and a
    name that is being looked up is not looked up a second time. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Future[Addresses]] = {}

    async def addresses(self, host: str) -> Addresses:
        """See `Resolver.addresses`."""
        asked = self._asked.get(host)
        if asked is None:
            asked = self._asked[host] = asyncio.get_running_loop().create_future()
            asked.add_done_callback(_ignore_outcome)
            threading.Thread(
                target=self._look_up, args=(host, asked.get_loop()), name="resolver", daemon=True
            ).start()
        return await asyncio.shield(asked)

    def _look_up(self, host: str, loop: asyncio.AbstractEventLoop) -> None:
        found: Addresses | ResolutionFailed
        try:
            found = _addresses(host)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no name"
            found = ResolutionFailed(f"`{host}` cannot be resolved: {reason}")
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._settle, host, found)

    def _settle(self, host: str, found: Addresses | ResolutionFailed) -> None:
        asked = self._asked.pop(host)
        if isinstance(found, ResolutionFailed):
            asked.set_exception(found)
        else:
            asked.set_result(found)


def _addresses(host: str) -> Addresses:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple({str(address[0]) for *_, address in found})


def _ignore_outcome(asked: asyncio.Future[Addresses]) -> None:
    # All who asked may have gone; an error not looked at would be logged as forgotten.
    if not asked.cancelled():
        asked.exception()
