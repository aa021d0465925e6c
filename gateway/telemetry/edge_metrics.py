"""Publishes metrics about a listener's connections and its certificate."""

from prometheus_client import CollectorRegistry

from gateway.telemetry.instruments import Instruments


class EdgeMetrics:
    """Publishes metrics of the listener `listener`.

    If there is no registry, the metrics are not exported.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, listener: str = "customers"
    ) -> None:
        self._listener = listener
        self._instruments = Instruments(registry or CollectorRegistry())

    def certificate(self, expires: float, *, is_usable: bool) -> None:
        """Publish when the certificate in use expires, and whether its files are usable."""
        labels = (self._listener,)
        self._instruments.set_gauge("tls_certificate_expiry_timestamp_seconds", expires, labels)
        self._instruments.set_gauge("tls_certificate_unusable", float(not is_usable), labels)

    def connections(self, count: int) -> None:
        """Publish the number of open connections."""
        self._instruments.set_gauge("open_connections", count, (self._listener,))

    def refused(self, reason: str) -> None:
        """Count a refused connection. `reason` is one of a few fixed words."""
        self._instruments.add("refused_connections_total", (self._listener, reason))

    def closed(self, reason: str) -> None:
        """Count a connection that was closed because its client read too slowly."""
        self._instruments.add("closed_readers_total", (self._listener, reason))
