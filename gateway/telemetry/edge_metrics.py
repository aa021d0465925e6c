"""Publishes metrics about a listener's connections and its certificate."""

from typing import Final

from prometheus_client import CollectorRegistry

from sluicegate.gateway.telemetry.instruments import Instruments
from sluicegate.wire.metric_declaration import Aggregation, counter, gauge

_CONNECTIONS: Final = gauge(
    "sluicegate_open_connections",
    "Open connections by `listener`: `customers`, `operators`.",
    "listener",
)
_REFUSED: Final = counter(
    "sluicegate_refused_connections_total",
    "Connections that a listener refused or could not establish. `reason`: `connections` (too "
    "many), `address` (too many from one address), `tls`, `proxy_header`, `broken`, `frames` "
    "(invalid gRPC frames).",
    *("listener", "reason"),
)
_CLOSED: Final = counter(
    "sluicegate_closed_readers_total",
    "Connections that a listener closed because the peer read too slowly. `reason`: `slow` (below "
    "the minimum rate), `wanted` (other requests waited for the memory), `full` (unsent responses "
    "exceeded their limit).",
    *("listener", "reason"),
)
_EXPIRY: Final = gauge(
    "sluicegate_tls_certificate_expiry_timestamp_seconds",
    "Expiry time of a listener's certificate, in seconds since 1970.",
    "listener",
    over=Aggregation.LEAST,
)
_UNUSABLE: Final = gauge(
    "sluicegate_tls_certificate_unusable",
    "Whether a listener's certificate files are unusable; the listener keeps the old certificate.",
    "listener",
    over=Aggregation.MOST,
)


class EdgeMetrics:
    """Publishes metrics of the listener `listener`."""

    def __init__(
        self, registry: CollectorRegistry | None = None, *, listener: str = "customers"
    ) -> None:
        self._listener = listener
        self._instruments = Instruments(registry or CollectorRegistry())

    def certificate(self, expires: float, *, is_usable: bool) -> None:
        """Publish when the certificate in use expires, and whether its files are usable."""
        labels = (self._listener,)
        self._instruments.set_gauge(_EXPIRY, expires, labels)
        self._instruments.set_gauge(_UNUSABLE, float(not is_usable), labels)

    def connections(self, count: int) -> None:
        """Publish the number of open connections."""
        self._instruments.set_gauge(_CONNECTIONS, count, (self._listener,))

    def refused(self, reason: str) -> None:
        """Count a refused connection. `reason` is one of a few fixed words."""
        self._instruments.add(_REFUSED, (self._listener, reason))

    def closed(self, reason: str) -> None:
        """Count a connection that was closed because its client read too slowly."""
        self._instruments.add(_CLOSED, (self._listener, reason))
