"""Fetches the public keys of an identity provider in the background, and caches them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from ipaddress import ip_address
from math import inf
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.tasks import PeriodicTask, pause

ALGORITHMS = {"RS256": "RSA", "ES256": "EC"}
"""The accepted signature algorithms, each with the type of its keys."""
INTERVAL = 300.0
"""Seconds from one regular read of the keys to the next."""
KEPT = 24 * 3600.0
"""Seconds for which keys stay in use after the last read that succeeded."""
_PAUSE = 10.0
"""Tokens with unknown keys cause at most one read of the keys in this many seconds."""
_WAIT = 2.0
_TIMEOUT = 5.0
_MAX_BYTES = 256 * 1024
_MAX_KEYS = 64
_FEWEST_BITS = 2048  # the length of the shortest accepted RSA key
_DISCOVERY = "/.well-known/openid-configuration"
_log = logging.getLogger(__name__)
_FAILURES = (
    *(httpx.HTTPError, httpx.InvalidURL, TimeoutError),
    *(msgspec.DecodeError, ValueError, RecursionError),
)
T = TypeVar("T")
PublicKey = RSAKey | ECKey


class _Discovery(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[Any]


class IssuerKeys:
    """Reads the keys at the start, every five minutes, and when a token names an unknown key.

    `url` is the address of the key set. If `url` is empty, the address is in the issuer's discovery
    document. A read takes at most 5 s and reads at most 256 KiB.
    """

    def __init__(
        self,
        *,
        issuer: str,
        url: str,
        client: httpx.AsyncClient,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._url = url
        self._client = client
        self._monotonic = monotonic
        self._keys: dict[str, PublicKey] = {}
        self._read = self._tried = -inf
        self._ended = asyncio.Event()
        self._lock = asyncio.Lock()
        self._polling = PeriodicTask(
            self.refresh, interval=INTERVAL, failure="the identity provider's keys cannot be read"
        )

    async def __aenter__(self) -> Self:
        await self._polling.__aenter__()
        self._polling.wake()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._polling.__aexit__(*exc_info)

    async def find(self, kid: str, algorithm: str) -> PublicKey | None:
        """Return the key that a token names, or `None` if the issuer has no such key.

        If the key is unknown, the keys are read again, but at most once in 10 s. The call waits at
        most 2 s for the read.

        Raises:
            DependencyUnavailable: the last read of the keys failed.
        """
        key = self._known(kid, algorithm)
        if key is None and (self._lock.locked() or self._is_due()):
            ended = self._ended
            if not self._lock.locked():  # otherwise a second read would follow the one in progress
                self._polling.wake()
            await pause(ended, _WAIT)
            key = self._known(kid, algorithm)
        if key is None and self._read < self._tried:
            raise DependencyUnavailable(
                "the identity provider's keys cannot be read: try again, or use an operator's key",
                retry_after=_PAUSE,
            )
        return key

    async def refresh(self) -> None:
        """Read the keys. If that fails, the former keys stay in use."""
        async with self._lock:
            began = self._tried = self._monotonic()
            try:
                async with asyncio.timeout(_TIMEOUT):
                    found = await self._fetch()
            except _FAILURES as error:
                reason = str(error) or type(error).__name__
                _log.warning(
                    "the identity provider's keys cannot be read; the former keys stay in use",
                    extra={"reason": reason[:300], "issuer": self._issuer},
                )
            else:
                self._keys, self._read = found, began
            self._ended.set()
            self._ended = asyncio.Event()

    def _is_due(self) -> bool:
        return self._monotonic() - self._tried >= _PAUSE

    def _known(self, kid: str, algorithm: str) -> PublicKey | None:
        if self._monotonic() - self._read > KEPT:
            return None
        kind = ALGORITHMS.get(algorithm)
        if kid:
            key = self._keys.get(kid)
            return key if key is not None and key.key_type == kind else None
        fitting = [key for key in self._keys.values() if key.key_type == kind]
        return fitting[0] if len(fitting) == 1 else None

    async def _fetch(self) -> dict[str, PublicKey]:
        url = self._url
        if not url:
            found = await self._get(self._issuer.rstrip("/") + _DISCOVERY, _Discovery)
            if found.issuer != self._issuer:
                raise ValueError("the discovery document names another issuer")
            url = found.jwks_uri
        listed = (await self._get(url, _KeySet)).keys
        keys = [key for one in listed[:_MAX_KEYS] if (key := _usable(one)) is not None]
        if not keys:
            raise ValueError("the key set has no key for RS256 or ES256")
        return {str(key.kid or f"unnamed {number}"): key for number, key in enumerate(keys)}

    async def _get(self, url: str, kind: type[T]) -> T:
        if not is_safe(url):
            raise ValueError("the address is not `https://`")
        body = bytearray()
        headers = {"accept-encoding": "identity"}
        async with self._client.stream("GET", url, headers=headers) as response:
            response.raise_for_status()
            if response.headers.get("content-encoding", "identity") != "identity":
                # No compression: a small body could become very large before its size is checked.
                raise ValueError("the response is compressed")
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise ValueError(f"the response has more than {_MAX_BYTES} bytes")
        return msgspec.json.decode(body, type=kind)


def is_safe(url: str) -> bool:
    """Return whether the content of `url` is authentic: it uses TLS or leads to this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    host = parts.hostname or ""
    if parts.scheme == "http":
        if host == "localhost":
            return True
        with contextlib.suppress(ValueError):
            return ip_address(host).is_loopback
    return parts.scheme == "https" and bool(host)


def _usable(listed: Any) -> PublicKey | None:
    """Parse a key of a key set; return `None` if it is not a strong key for `ALGORITHMS`."""
    if not isinstance(listed, dict) or listed.get("use", "sig") != "sig":
        return None
    try:
        if listed.get("alg", "RS256") not in ALGORITHMS:
            return None
        # The modulus is base64 text, so each character stands for six bits.
        if listed.get("kty") == "RSA" and 6 * len(str(listed.get("n"))) >= _FEWEST_BITS:
            return RSAKey.import_key(listed)
        if listed.get("kty") == "EC" and listed.get("crv") == "P-256":
            return ECKey.import_key(listed)
    except (JoseError, ValueError, TypeError):
        return None
    return None
