"""Publishes metrics of each endpoint, such as its health and its predicted finish time."""

from collections.abc import Callable, Iterable
from typing import Final

from sluicegate.gateway.routing.endpoint_state import Health
from sluicegate.gateway.routing.statistics import EndpointStatistics
from sluicegate.gateway.telemetry.instruments import Instruments
from sluicegate.wire.metric_declaration import Aggregation, MetricDeclaration, counter, gauge

_ENDPOINT: Final = ("region", "endpoint")
_GAUGES: Final[dict[MetricDeclaration, Callable[[EndpointStatistics], float]]] = {
    gauge(
        "sluicegate_endpoint_up",
        "Whether the endpoint is ready in the view of every worker.",
        *_ENDPOINT,
        over=Aggregation.LEAST,
    ): lambda one: one.health is Health.READY,
    gauge(
        "sluicegate_endpoint_share",
        "Fraction of its speed that is used; below 1 during slow start.",
        *_ENDPOINT,
        over=Aggregation.LEAST,
    ): lambda one: one.share,
    gauge(
        "sluicegate_endpoint_predicted_finish_seconds",
        "Predicted time until an item sent now has a result.",
        *_ENDPOINT,
        over=Aggregation.MOST,
    ): lambda one: one.finish_time,
    gauge(
        "sluicegate_endpoint_in_flight_items", "Items that wait for the endpoint.", *_ENDPOINT
    ): lambda one: one.in_flight,
    gauge(
        "sluicegate_endpoint_limit_items",
        "Items in flight above which sheddable requests are refused.",
        *_ENDPOINT,
    ): lambda one: one.limit,
    gauge(
        "sluicegate_endpoint_drained", "Whether it is drained.", *_ENDPOINT, over=Aggregation.MOST
    ): lambda one: one.drained,
    gauge(
        "sluicegate_endpoint_ejected",
        "Whether a worker has ejected it.",
        *_ENDPOINT,
        over=Aggregation.MOST,
    ): lambda one: one.ejected_for > 0,
}
_FASTEST: Final = gauge(
    "sluicegate_endpoint_fastest_finish_seconds",
    "Lowest predicted time of all usable endpoints (ready, not drained, not ejected) that serve a "
    "model of this endpoint.",
    *_ENDPOINT,
    over=Aggregation.MOST,
)
_EJECTIONS: Final = counter(
    "sluicegate_endpoint_ejections_total", "Ejections by all workers.", *_ENDPOINT
)
_AT_ONCE: Final = 128


class EndpointMetrics:
    """Publishes the statistics that `read` returns as metrics of endpoints.

    The metrics of an endpoint that no longer exists are removed.
    """

    def __init__(
        self, instruments: Instruments, read: Callable[[], Iterable[EndpointStatistics]]
    ) -> None:
        self._instruments = instruments
        self._read = read
        self._known: set[tuple[str, ...]] = set()
        self._left: list[EndpointStatistics] = []
        self._fastest: dict[str, EndpointStatistics] = {}
        """For each model, the endpoint with the shortest predicted finish time in the last pass."""
        self._faster: dict[str, EndpointStatistics] = {}
        """For each model, the endpoint with the shortest predicted finish time so far in this
        pass."""

    def publish(self) -> None:
        """Publish the metrics of the next 128 endpoints. Called about once a second.

        A pass over many endpoints takes several calls, so that no call blocks the event loop for
        long.
        """
        if not self._left:
            self._left = list(self._read())
            self._fastest, self._faster = self._faster, {}
            self._forget({(one.region, one.backend) for one in self._left})
        now, self._left = self._left[:_AT_ONCE], self._left[_AT_ONCE:]
        for one in now:
            labels = (one.region, one.backend)
            for metric, value in _GAUGES.items():
                self._instruments.set_gauge(metric, float(value(one)), labels)
            self._instruments.set_gauge(_FASTEST, self._fastest_finish(one), labels)
            self._instruments.set_total(_EJECTIONS, one.ejections, labels)

    def _fastest_finish(self, one: EndpointStatistics) -> float:
        """Return the shortest predicted finish time of endpoints that share a model with `one`.

        Only usable endpoints and `one` itself are compared. The prediction for `one` is computed
        now, because `one` may have been idle in the last pass. The predictions for all other
        endpoints are from the last pass.
        """
        least = one.finish_time
        is_used = one.health is Health.READY and not one.drained and one.ejected_for <= 0
        for model in one.models:
            fastest = self._fastest.get(model, one)
            if (fastest.region, fastest.backend) != (one.region, one.backend):
                least = min(least, fastest.finish_time)
            if is_used and one.finish_time < self._faster.setdefault(model, one).finish_time:
                self._faster[model] = one
        return least

    def _forget(self, found: set[tuple[str, ...]]) -> None:
        """Remove the metrics of all endpoints that are not in `found`."""
        if self._known - found:
            self._instruments.retain((*_GAUGES, _FASTEST), found)
        self._known = found
