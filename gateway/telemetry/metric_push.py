"""Pushes a gateway machine's metrics over OTLP, if `OTEL_METRICS_EXPORTER` is set."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.wire.otlp.variables import TracingProblem, drop_unusable, is_push_wanted


class MetricPush(Protocol):
    """Pushes metrics to a collector. Failures raise no errors, and no request waits for a push."""

    async def run(
        self,
        read: Callable[[], Awaitable[Iterable[Any]]],  # metric families of `prometheus_client`
        stop: asyncio.Event,
    ) -> None:
        """Call `read` at intervals and push the metrics that it returns, until `stop` is set."""
        ...


class NoPush:
    """Implements `MetricPush` when no push is configured."""

    async def run(self, read: Callable[[], Awaitable[Iterable[Any]]], stop: asyncio.Event) -> None:
        """Return immediately."""


def push_from(
    environ: MutableMapping[str, str], *, instance: str, counted_since: int | None = None
) -> MetricPush:
    """Return the push that `environ`, the process's environment, configures.

    If the machine's counters are older than this process, `counted_since` is the time when they
    began to count, in nanoseconds since 1970.

    Raises:
        ConfigurationError: the configuration is invalid, or a package is not installed.
    """
    drop_unusable(environ)
    if not is_push_wanted(environ):
        return NoPush()
    # Imported here, because the SDK reads the environment when it is imported.
    from sluicegate.wire.otlp.metrics import open_pusher  # noqa: PLC0415

    attributes = {"service.name": "sluicegate-gateway", "service.instance.id": instance}
    try:
        return open_pusher(environ, attributes, counted_since=counted_since)
    except TracingProblem as error:
        raise ConfigurationError(str(error)) from error
