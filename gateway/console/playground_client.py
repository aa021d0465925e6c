"""Sends requests to the customers' listener for the playground."""

import asyncio
import secrets
import ssl
import time
from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from sluicegate.gateway.errors import UpstreamUnavailable
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.sockets.certificate_files import first_certificate
from sluicegate.wire.protocol import Task

TIMEOUT = 60.0
MOST_ANSWER_BYTES = 256 * 1024
_AT_ONCE = 4
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - looked up, not bound


class TimingStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a request, from the header `Server-Timing`."""

    name: str
    duration: float
    """The duration in seconds."""


class PlaygroundAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a customer's request, with the values of some headers."""

    status: int
    body: str
    is_cut: bool
    duration: float
    """Seconds from sending the request to the end of the response."""
    cache: str
    rows: str
    age: str
    request_id: str
    trace_id: str
    phases: tuple[TimingStep, ...]

    @property
    def is_hit(self) -> bool:
        """Whether the result cache had the results of all items."""
        return "hit" in {part.strip() for part in self.cache.split(";")}


class PlaygroundClient:
    """Calls the customers' listener. At most four requests are in flight at a time."""

    def __init__(self, settings: Settings) -> None:
        self._url = customers_url(settings)
        self._certificate = None if settings.playground_url else settings.tls_certificate
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def send(
        self, *, task: Task, model: str, body: bytes, key: str, fresh: bool
    ) -> PlaygroundAnswer:
        """Send a request and return the response. If `fresh` is true, bypass the result cache.

        For the task `guard`, `model` is the name of the guard.

        Raises:
            UpstreamUnavailable: the listener cannot be reached, or does not respond in time.
        """
        is_named = task in {Task.INFER, Task.GUARD}
        path = f"/v1/{task}" + (f"/{quote(model, safe='')}" if is_named else "")
        trace_id = secrets.token_hex(16)
        headers = {
            "authorization": f"Bearer {key}",
            "content-type": "application/json",
            "x-server-timing": "1",
            "traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01",
        } | ({"cache-control": "no-cache"} if fresh else {})
        started = time.perf_counter()
        async with self._slots:
            status, found, answered = await self._post(path, body, headers)
        return PlaygroundAnswer(
            status=status,
            body=found[:MOST_ANSWER_BYTES].decode(errors="replace"),
            is_cut=len(found) > MOST_ANSWER_BYTES,
            duration=time.perf_counter() - started,
            cache=answered.get("cache-status", ""),
            rows=answered.get("sluicegate-rows", ""),
            age=answered.get("age", ""),
            request_id=answered.get("x-request-id", ""),
            trace_id=trace_id,
            phases=phases_of(answered.get("server-timing", "")),
        )

    async def _post(
        self, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Return the status, the body and the headers. A body that is too long is cut off."""
        import httpx  # noqa: PLC0415 - most operators send no request

        found = bytearray()
        try:
            verify = await asyncio.to_thread(self._tls)
            async with (
                asyncio.timeout(TIMEOUT),
                httpx.AsyncClient(verify=verify, timeout=TIMEOUT, trust_env=False) as client,
                client.stream("POST", self._url + path, content=body, headers=headers) as answer,
            ):
                async for chunk in answer.aiter_bytes():
                    found += chunk
                    if len(found) > MOST_ANSWER_BYTES:
                        break
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            raise UpstreamUnavailable(
                f"the customers' listener at `{self._url}` does not respond"
                f" ({type(error).__name__}); set its address in `SLUICEGATE_PLAYGROUND_URL`",
            ) from error
        return answer.status_code, bytes(found), answer.headers

    def _tls(self) -> ssl.SSLContext | bool:
        """Return the TLS settings with which the listener's certificate is verified.

        This machine's certificate is trusted for every host name.
        """
        if self._certificate is None:
            return self._url.startswith("https:")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        chain = self._certificate.read_text("latin-1")
        context.load_verify_locations(cadata=first_certificate(chain))
        return context


def customers_url(settings: Settings) -> str:
    """Return the URL of the customers' listener. The default is the listener on this machine."""
    if settings.playground_url:
        return settings.playground_url.rstrip("/")
    scheme = "http" if settings.tls_certificate is None else "https"
    host = _WILDCARDS.get(settings.host) or (
        f"[{settings.host}]" if ":" in settings.host else settings.host
    )
    return f"{scheme}://{host}:{settings.port}"


def phases_of(timing: str) -> tuple[TimingStep, ...]:
    """Parse the header `Server-Timing`. Entries without a duration are left out."""
    found = []
    for entry in timing.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key == "dur" and value.replace(".", "", 1).isdecimal():
                found.append(TimingStep(name=name, duration=float(value) / 1000))
    return tuple(found)
