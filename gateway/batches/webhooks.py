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

import msgspec
import yaml

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.webhooks import Delivery, DeliveryStore
from sluicegate.gateway.sockets.special_addresses import is_public
from sluicegate.gateway.tasks import pause

_PREFIX = "whsec_"
_TIMEOUT = 15.0
_POLL = 1.0
# Seconds until the next attempt, as the specification advises; then a delivery is given up.
_WAITS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
_TAKEN = range(200, 300)
_GONE = 410
_UNTIL_MENDED = 60.0
_KEY_BYTES = range(24, 65)
_log = logging.getLogger(__name__)


class Webhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a tenant's webhooks go; `secret` is `whsec_` and 24 to 64 bytes in base64.

    During a rotation a webhook is signed with `second_secret`, too.
    """

    url: str
    secret: str
    second_secret: str = ""
    allow_private: bool = False
    """Allows addresses of private networks, and `http://`."""

    def signing_keys(self) -> list[bytes]:
        """Return the keys of its signatures.

        Raises:
            ValueError: a secret has another form.
        """
        second = [_key_of(self.second_secret)] if self.second_secret else []
        return [_key_of(self.secret), *second]


def _key_of(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("the secret is not base64") from error
    if len(key) not in _KEY_BYTES:
        raise ValueError("the secret must have 24 to 64 bytes")
    return key


class Forbidden(Exception):
    """Reports that a webhook must not be sent where its URL leads."""


def read_webhooks(path: Path | None) -> Mapping[str, Webhook | None]:
    """Return the webhooks in the file at `path` by tenant, `None` for one that is wrong.

    Raises:
        DependencyUnavailable: the file cannot be read.
    """
    if path is None:
        return {}
    try:
        entries = msgspec.convert(yaml.safe_load(path.read_bytes()) or {}, dict[str, Any])
    except (OSError, ValueError, yaml.YAMLError, msgspec.ValidationError) as error:
        # The text of an error may hold a part of the file.
        _log.error(
            "webhooks wait: their file cannot be read",
            extra={"file": str(path), "reason": type(error).__name__},
        )
        raise DependencyUnavailable("the file of webhooks cannot be read") from error
    return {tenant: _webhook(path, tenant, entry) for tenant, entry in entries.items()}


def _webhook(path: Path, tenant: str, entry: object) -> Webhook | None:
    try:
        webhook = msgspec.convert(entry, Webhook)
        webhook.signing_keys()
    except ValueError as error:
        _log.error(
            "the webhooks of a tenant wait: their entry is wrong",
            # As above: what is wrong with a secret says nothing of it, other errors may.
            extra={"file": str(path), "tenant": tenant, "reason": type(error).__name__},
        )
        return None
    return webhook


def sign(webhook: Webhook, id_: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that prove that `body` is ours, with a signature for each secret."""
    signed = f"{id_}.{timestamp}.".encode() + body
    digests = [hmac.new(key, signed, hashlib.sha256).digest() for key in webhook.signing_keys()]
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(d).decode()}" for d in digests),
    }


class DeliveryRunner:
    """Sends what is to be delivered; `read` returns the webhooks by tenant."""

    def __init__(
        self,
        *,
        deliveries: DeliveryStore,
        read: Callable[[], Mapping[str, Webhook | None]],
        wall: Callable[[], float] = time.time,  # noqa: TID251 - part of what is signed
        timeout: float = _TIMEOUT,
    ) -> None:
        self._deliveries = deliveries
        self._read = read
        self._wall = wall
        self._timeout = timeout

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop`."""
        is_waiting = False
        while not stop.is_set():
            try:
                await self.run_once()
                is_waiting = False
            except DependencyUnavailable as error:
                if not is_waiting:
                    _log.warning("webhooks wait", extra={"reason": error.detail})
                is_waiting = True
            await pause(stop, _POLL)

    async def run_once(self) -> None:
        """Send what is due."""
        due = await asyncio.to_thread(self._deliveries.take, seconds=4 * self._timeout)
        if not due:
            return
        try:
            webhooks = await asyncio.to_thread(self._read)
        except DependencyUnavailable:
            # Nothing was sent, so no attempt was made.
            webhooks = dict.fromkeys(delivery.tenant for delivery in due)
        await asyncio.gather(*(self._deliver(each, webhooks) for each in due))

    async def _deliver(self, delivery: Delivery, webhooks: Mapping[str, Webhook | None]) -> None:
        if delivery.tenant not in webhooks:
            is_done = True
        elif (webhook := webhooks[delivery.tenant]) is None:
            await asyncio.to_thread(self._deliveries.postpone, delivery, after=_UNTIL_MENDED)
            return
        else:
            is_done = await self._send(delivery, webhook)
        if is_done or delivery.attempts > len(_WAITS):
            await asyncio.to_thread(self._deliveries.remove, delivery.id)
        else:
            wait = _WAITS[delivery.attempts - 1]
            await asyncio.to_thread(self._deliveries.retry, delivery.id, after=wait)

    async def _send(self, delivery: Delivery, webhook: Webhook) -> bool:
        """Send a webhook; return whether it is not to be sent again."""
        import httpx  # noqa: PLC0415 - most gateways deliver no webhooks

        body = delivery.payload.encode()
        try:
            # In all: the time-outs of the client are for each read.
            async with asyncio.timeout(self._timeout):
                url, extensions, host = await _pinned(webhook)
                headers = sign(webhook, delivery.id, int(self._wall()), body)
                headers |= {"content-type": "application/json", "host": host}
                async with (
                    httpx.AsyncClient(timeout=None, trust_env=False) as client,  # noqa: S113
                    client.stream(
                        "POST", url, content=body, headers=headers, extensions=extensions
                    ) as answer,
                ):
                    status = answer.status_code
        except (Forbidden, ValueError, OSError, httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) if isinstance(error, Forbidden) else type(error).__name__
            self._note(delivery, reason)
            return False
        if not (status in _TAKEN or status == _GONE):
            self._note(delivery, f"status {status}")
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
        Forbidden: it leads elsewhere than to the public Internet, or is not `https://`.
    """
    parts = urlsplit(webhook.url)
    host = parts.hostname or ""
    if parts.scheme != "https" and not (parts.scheme == "http" and webhook.allow_private):
        raise Forbidden("its URL is not `https://`")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(address[0])) for *_, address in found]
    if not webhook.allow_private and not all(map(is_public, addresses)):
        raise Forbidden("its URL leads to an address outside the public Internet")
    address = addresses[0]
    name = f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004
    path = parts.path or "/"
    url = f"{parts.scheme}://{name}:{port}{path}" + (f"?{parts.query}" if parts.query else "")
    return url, {"sni_hostname": host}, parts.netloc.rpartition("@")[2]
