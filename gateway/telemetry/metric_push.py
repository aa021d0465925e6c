"""Pushes the metrics of a gateway machine over OTLP where `OTEL_METRICS_EXPORTER` says so."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

from backends.otlp_variables import TracingProblem, drop_unusable, is_push_wanted
from gateway.errors import ConfigurationError


class MetricPush(Protocol):
    """Pushes metrics; nothing raises, and nobody waits for a collector."""

    async def run(
        self,
        read: Callable[[], Awaitable[Iterable[Any]]],  # of the metrics library, which both know
        stop: asyncio.Event,
    ) -> None:
        """Push what `read` returns again and again until `stop`."""
        ...


class NoPush:
    """Pushes nothing: nobody asked for it."""

    async def run(self, read: Callable[[], Awaitable[Iterable[Any]]], stop: asyncio.Event) -> None:
        """Return at once."""


def push_from(
    environ: MutableMapping[str, str], *, instance: str, counted_since: int | None = None
) -> MetricPush:
    """Return the push that `environ`, the process's own environment, asks for.

    `counted_since` is when the totals of the machine began (ns), if they are older than it.

    Raises:
        ConfigurationError: it asks for what is not installed or impossible.
    """
    drop_unusable(environ)
    if not is_push_wanted(environ):
        return NoPush()
    # The SDK reads the environment as it is imported.
    from backends.otlp_metrics import open_pusher  # noqa: PLC0415

    attributes = {"service.name": "sluicegate-gateway", "service.instance.id": instance}
    try:
        return open_pusher(environ, attributes, counted_since=counted_since)
    except TracingProblem as error:
        raise ConfigurationError(str(error)) from error
