"""Runs Lua scripts in the Redis that stores limits and usage events.

In a cluster, each script runs on the node that owns its keys.
"""

import hashlib
from collections.abc import Sequence
from math import inf
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from sluicegate.gateway.redis.cluster import ClusterClient
from sluicegate.gateway.redis.pipeline import Command
from sluicegate.gateway.redis.url import read_servers
from sluicegate.gateway.sockets.tcp_keepalive import TcpKeepalive

_Values = Sequence[str | bytes | int | float]


class Script(Protocol):
    """Runs a script once. After a `RedisError` or an `OSError`, the script may have run, too."""

    async def __call__(self, keys: Sequence[str], args: _Values) -> Any:
        """Return the script's reply."""
        ...


class ScriptClient(Protocol):
    """Runs scripts, like redis-py's `Redis`. The keys of a script must be in one slot."""

    def register_script(self, script: str) -> Script:
        """Return an object that runs `script`."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...


def open_scripts(
    url: str, *, state: Redis, timeout: float, keepalive: TcpKeepalive
) -> ScriptClient:
    """Return a client that runs scripts on any node of a cluster.

    If `url` is not the URL of a cluster, the result is `state`, the existing client for `url`.

    Raises:
        ConfigurationError: the URL names several servers and is invalid.
    """
    servers = read_servers(url)
    if servers is None or servers.kind != "cluster":
        return state
    return ClusterScripts(ClusterClient(servers, timeout=timeout, slow=inf, keepalive=keepalive))


class ClusterScripts:
    """Runs each script on the node that owns the slot of its keys."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def register_script(self, script: str) -> Script:
        """Return an object that runs `script`."""
        return _ClusterScript(self._client, script)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()


class _ClusterScript:
    def __init__(self, client: ClusterClient, script: str) -> None:
        self._client = client
        self._script = script
        self._digest = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, keys: Sequence[str], args: _Values) -> Any:
        try:
            return await self._run(b"EVALSHA", self._digest, keys, args)
        except NoScriptError:
            return await self._run(b"EVAL", self._script, keys, args)

    async def _run(self, name: bytes, script: str, keys: Sequence[str], args: _Values) -> Any:
        values = [each if isinstance(each, bytes) else str(each) for each in args]
        command: Command = (name, script, len(keys), *keys, *values)
        (reply,) = await self._client.execute([command])
        if isinstance(reply, OSError):
            raise reply
        if isinstance(reply, Exception):
            is_missing = str(reply).startswith("NOSCRIPT")
            raise (NoScriptError if is_missing else ResponseError)(str(reply))
        return reply
