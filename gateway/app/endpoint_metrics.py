"""Publishes metrics of each endpoint, such as its health and its predicted finish time."""

from collections.abc import Callable, Iterable
from typing import Final

from gateway.routing.endpoint_state import Health
from gateway.routing.statistics import EndpointStatistics
from gateway.telemetry.instruments import Instruments

_GAUGES: Final[dict[str, Callable[[EndpointStatistics], float]]] = {
    "endpoint_up": lambda one: one.health is Health.READY,
    "endpoint_share": lambda one: one.share,
    "endpoint_predicted_finish_seconds": lambda one: one.finish_time,
    "endpoint_in_flight_items": lambda one: one.in_flight,
    "endpoint_limit_items": lambda one: one.limit,
    "endpoint_drained": lambda one: one.drained,
    "endpoint_ejected": lambda one: one.ejected_for > 0,
}
_FASTEST: Final = "endpoint_fastest_finish_seconds"
_NAMES: Final = (*_GAUGES, _FASTEST)
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
            for name, value in _GAUGES.items():
                self._instruments.set_gauge(name, float(value(one)), labels)
            self._instruments.set_gauge(_FASTEST, self._fastest_finish(one), labels)
            self._instruments.set_total("endpoint_ejections_total", one.ejections, labels)

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
            self._instruments.retain(_NAMES, found)
        self._known = found
