"""Parses Redis URLs that name several servers.

- `redis-sentinel://[user:password@]host:port,host:port/database?primary=name`
- `redis-cluster://[user:password@]host:port,host:port`

The schemes `rediss-sentinel` and `rediss-cluster` use TLS. User and password are for the data
servers. Sentinels get no credentials.
"""

import contextlib
import re
from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

import msgspec

from sluicegate.gateway.errors import ConfigurationError

_AFTER_SERVERS = re.compile("[/?#]")
_PORTS = {"sentinel": 26_379, "cluster": 6_379}


class Servers(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a parsed URL. `kind` is `sentinel` or `cluster`, and `base` is `redis` or `rediss`."""

    kind: str
    base: str
    credentials: str
    addresses: tuple[tuple[str, int], ...]
    database: str
    primary: str

    @property
    def urls(self) -> Sequence[str]:
        """The URLs of the servers as data servers, with user, password and database."""
        return [self.url_of(host, port) for host, port in self.addresses]

    @property
    def sentinel_urls(self) -> Sequence[str]:
        """The URLs of the servers as Sentinels, without user, password and database."""
        return [f"{self.base}://{_in_url(host)}:{port}" for host, port in self.addresses]

    def url_of(self, host: str, port: int) -> str:
        """Return the URL of a data server."""
        return f"{self.base}://{self.credentials}{_in_url(host)}:{port}/{self.database}"

    def host_of(self, url: str) -> str:
        """Return the host in a URL from `url_of`."""
        return urlsplit(url).hostname or ""


def read_servers(url: str) -> Servers | None:
    """Parse a URL that names several servers. Return `None` for any other URL.

    Raises:
        ConfigurationError: the URL names no servers, does not name the primary for Sentinels, or
            names a database other than 0 for a cluster.
    """
    scheme, _, rest = url.partition(":")
    base, _, kind = scheme.lower().partition("-")
    if base not in ("redis", "rediss") or kind not in _PORTS:
        return None
    # `urlsplit` may refuse a list of servers with IPv6 addresses, so the list is cut out first.
    rest = rest.removeprefix("//")
    servers = _AFTER_SERVERS.split(rest, maxsplit=1)[0]
    parts = urlsplit("//host" + rest.removeprefix(servers))
    credentials, at, hosts = servers.rpartition("@")
    primary = parse_qs(parts.query).get("primary", [""])[0]
    if kind == "sentinel" and not primary:
        raise ConfigurationError(
            "a `redis-sentinel` URL must name the primary: append `?primary=name`"
        )
    database = parts.path.strip("/") or "0"
    if kind == "cluster" and database != "0":
        raise ConfigurationError(
            f"a Redis Cluster only has database 0, not `{database}`; leave it out"
        )
    return Servers(
        kind=kind,
        base=base,
        credentials=credentials + at,
        addresses=tuple(_address(host, _PORTS[kind]) for host in hosts.split(",")),
        database=database,
        primary=primary,
    )


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _address(text: str, default: int) -> tuple[str, int]:
    host, port = "", default
    with contextlib.suppress(ValueError):
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname or "", parts.port or default
    if not host:
        raise ConfigurationError(f"`{text}` in the Redis URL must be `host:port`")
    return host, port
