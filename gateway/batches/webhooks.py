"""Delivers webhooks by the Standard Webhooks specification, with retries, to public addresses."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import yaml

from gateway.errors import DependencyUnavailable
from gateway.ledger.webhooks import Delivery, DeliveryStore
from gateway.workers.backoff import pause

_PREFIX = "whsec_"
_TIMEOUT = 15.0
_POLL = 1.0
# Seconds until the next attempt, as the specification advises; then a delivery is given up.
_WAITS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
_GONE = 410
_log = logging.getLogger(__name__)


class Webhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a tenant's webhooks go; `secret` is `whsec_` and 24 to 64 bytes in base64."""

    url: str
    secret: str
    allow_private: bool = False
    """Allows addresses of private networks, and `http://`."""

    def key(self) -> bytes:
        """Return the key of its signatures.

        Raises:
            ValueError: `secret` has another form.
        """
        try:
            return base64.b64decode(self.secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error as error:
            raise ValueError("the secret is not base64") from error


class Forbidden(Exception):
    """Reports that a webhook must not be sent where its URL leads."""


def read_webhooks(path: Path | None) -> Mapping[str, Webhook]:
    """Return the webhooks in the file at `path` by tenant, none where it cannot be read."""
    if path is None:
        return {}
    try:
        return msgspec.convert(yaml.safe_load(path.read_bytes()) or {}, dict[str, Webhook])
    except (OSError, ValueError, yaml.YAMLError, msgspec.ValidationError) as error:
        # The text of an error may hold a part of the file.
        _log.error(
            "webhooks wait: their file cannot be read",
            extra={"file": str(path), "reason": type(error).__name__},
        )
        raise DependencyUnavailable("the file of webhooks cannot be read") from error


def sign(webhook: Webhook, id_: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that prove that `body` is ours."""
    signed = f"{id_}.{timestamp}.".encode() + body
    digest = hmac.new(webhook.key(), signed, hashlib.sha256).digest()
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


class DeliveryRunner:
    """Sends what is to be delivered; `read` returns the webhooks by tenant."""

    def __init__(
        self,
        *,
        deliveries: DeliveryStore,
        read: Callable[[], Mapping[str, Webhook]],
        wall: Callable[[], float] = time.time,  # noqa: TID251 - part of what is signed
    ) -> None:
        self._deliveries = deliveries
        self._read = read
        self._wall = wall

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop`."""
        while not stop.is_set():
            try:
                await self.run_once()
            except DependencyUnavailable as error:
                _log.warning("webhooks wait", extra={"reason": error.detail})
            await pause(stop, _POLL)

    async def run_once(self) -> None:
        """Send what is due."""
        due = await asyncio.to_thread(self._deliveries.take, seconds=4 * _TIMEOUT)
        if due:
            webhooks = await asyncio.to_thread(self._read)
            await asyncio.gather(*(self._deliver(each, webhooks) for each in due))

    async def _deliver(self, delivery: Delivery, webhooks: Mapping[str, Webhook]) -> None:
        webhook = webhooks.get(delivery.tenant)
        is_done = webhook is None or await self._send(delivery, webhook)
        if is_done or delivery.attempts > len(_WAITS):
            await asyncio.to_thread(self._deliveries.remove, delivery.id)
        else:
            wait = _WAITS[delivery.attempts - 1]
            await asyncio.to_thread(self._deliveries.retry, delivery.id, after=wait)

    async def _send(self, delivery: Delivery, webhook: Webhook) -> bool:
        """Send a webhook; return whether it is not to be sent again."""
        body = delivery.payload.encode()
        try:
            url, extensions, host = await _pinned(webhook)
            headers = sign(webhook, delivery.id, int(self._wall()), body)
            headers |= {"content-type": "application/json", "host": host}
            async with httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False) as client:
                answer = await client.post(
                    url, content=body, headers=headers, extensions=extensions
                )
        except (Forbidden, ValueError, OSError, httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) if isinstance(error, Forbidden) else type(error).__name__
            self._note(delivery, reason)
            return False
        if not (answer.is_success or answer.status_code == _GONE):
            self._note(delivery, f"status {answer.status_code}")
            return False
        return True

    def _note(self, delivery: Delivery, reason: str) -> None:
        _log.warning(
            "a webhook was not delivered",
            extra={
                "tenant": delivery.tenant,
                "webhook": delivery.id,
                "attempt": delivery.attempts,
                "reason": reason,
            },
        )


async def _pinned(webhook: Webhook) -> tuple[str, dict[str, Any], str]:
    """Return the URL with an address in place of the name, what TLS is to check, and the host.

    The address that was checked is the one that is called: a name may lead elsewhere at its next
    look-up. Redirects are not followed.

    Raises:
        Forbidden: it leads to a private network, or is not `https://`.
    """
    parts = urlsplit(webhook.url)
    host = parts.hostname or ""
    if parts.scheme != "https" and not (parts.scheme == "http" and webhook.allow_private):
        raise Forbidden("its URL is not `https://`")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(address[0])) for *_, address in found]
    if not webhook.allow_private and not all(map(_is_public, addresses)):
        raise Forbidden("its URL leads to a private network")
    address = addresses[0]
    name = f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004
    path = parts.path or "/"
    url = f"{parts.scheme}://{name}:{port}{path}" + (f"?{parts.query}" if parts.query else "")
    return url, {"sni_hostname": host}, parts.netloc.rpartition("@")[2]


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_global and not mapped.is_multicast)
