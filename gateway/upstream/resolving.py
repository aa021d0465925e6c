"""Resolves host names to addresses, off the event loop."""

import asyncio
import contextlib
import socket
import threading
from typing import Protocol

Addresses = tuple[str, ...]


class ResolutionFailed(Exception):
    """A name has no addresses, or the look-up failed; the message says which."""


class Resolver(Protocol):
    """Resolves names. Cancelling is safe at any time."""

    async def addresses(self, host: str) -> Addresses:
        """Return every address of `host` once, IPv4 or IPv6, in any order; there is one at least.

        There is no time-out: the caller bounds the wait.

        Raises:
            ResolutionFailed: there is none, or the look-up failed.
        """
        ...


class SystemResolver:
    """Resolves as the operating system does: with its hosts file, search domains and name servers.

    `getaddrinfo` cannot be interrupted: each look-up has a daemon thread, and concurrent look-ups
    of one name share it. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._lookups: dict[str, asyncio.Future[Addresses | ResolutionFailed]] = {}

    async def addresses(self, host: str) -> Addresses:
        """See `Resolver.addresses`."""
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = asyncio.get_running_loop().create_future()
            threading.Thread(
                target=self._look_up, args=(host, lookup.get_loop()), name="resolver", daemon=True
            ).start()
        found = await asyncio.shield(lookup)
        if isinstance(found, ResolutionFailed):
            raise found
        return found

    def _look_up(self, host: str, loop: asyncio.AbstractEventLoop) -> None:
        found: Addresses | ResolutionFailed
        try:
            found = _addresses(host)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no name"
            found = ResolutionFailed(f"`{host}` cannot be resolved: {reason}")
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._finish, host, found)

    def _finish(self, host: str, found: Addresses | ResolutionFailed) -> None:
        self._lookups.pop(host).set_result(found)


def _addresses(host: str) -> Addresses:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple({str(address[0]) for *_, address in found})
