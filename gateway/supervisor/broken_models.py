"""Asks this machine's backends which models they cannot serve."""

from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from gateway.supervisor.local_http import ask
from gateway.supervisor.spec import ProcessSpec
from wire.protocol import STATE_PATH, TOKEN_HEADER, UNREADABLE, ServingState

_TIMEOUT = 10.0


async def broken_models(backends: Iterable[ProcessSpec], token: str) -> dict[str, str]:
    """Return why models cannot be served, by the name of the model.

    Backends that do not respond are left out. Raises no errors.
    """
    found: dict[str, str] = {}
    for backend in backends:
        address = urlsplit(backend.address or "")
        try:
            _, body = await ask(
                address.hostname or "",
                address.port or 0,
                STATE_PATH,
                headers={TOKEN_HEADER: token} if token else {},
                timeout=_TIMEOUT,
            )
            found |= msgspec.msgpack.decode(body, type=ServingState).problems
        except (OSError, *UNREADABLE):
            continue  # the backend's log explains why it does not respond
    return found
