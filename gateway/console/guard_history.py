"""Counts the verdicts and findings of guards in each half minute of the last half hour."""

from collections import Counter, deque
from typing import Final

from sluicegate.gateway.console.traffic import Reading
from sluicegate.gateway.console.usage_series import MOST_SERIES, Chart, Series
from sluicegate.gateway.telemetry.guard_verdicts import FAILED_TEXTS, FINDINGS, TEXTS
from sluicegate.gateway.telemetry.metric_reading import Labels
from sluicegate.wire.guards import VERDICTS
from sluicegate.wire.metric_declaration import MetricDeclaration

METRICS: Final = tuple([metric.family for metric in (TEXTS, FINDINGS, FAILED_TEXTS)])
"""The metrics that are read, without their ending `_total`."""
_NAMES: Final = frozenset(metric.name for metric in (TEXTS, FINDINGS, FAILED_TEXTS))
_STEP: Final = 30.0
_KEPT: Final = 60


class GuardHistory:
    """Keeps the growth of the counters of guards."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, Counter[tuple[str, Labels]]]] = deque(maxlen=_KEPT)

    def add(self, before: Reading, after: Reading) -> None:
        """Add the growth between two readings."""
        start = after.at - after.at % _STEP
        if not self._steps or self._steps[-1][0] < start:
            self._steps.append((start, Counter()))
        while self._steps[0][0] <= start - _STEP * _KEPT:
            self._steps.popleft()
        counts = self._steps[-1][1]
        for series, value in after.values.items():
            if series[0] in _NAMES and (grown := value - before.values.get(series, 0.0)) > 0:
                counts[series] += round(grown)

    def verdicts(self, guard: str) -> Chart:
        """Return the numbers of texts by verdict."""
        return self._chart(VERDICTS, [self._by(c, TEXTS, guard, "verdict") for _, c in self._steps])

    def findings(self, guard: str) -> Chart:
        """Return the numbers of findings of the detectors that find most."""
        counts = [self._by(each, FINDINGS, guard, "detector") for _, each in self._steps]
        most = sum(counts, Counter()).most_common(MOST_SERIES)
        return self._chart([name for name, _ in most], counts)

    def found(self, guard: str) -> Counter[str]:
        """Return the number of findings of each detector."""
        return sum((self._by(c, FINDINGS, guard, "detector") for _, c in self._steps), Counter())

    def failed(self, guard: str) -> int:
        """Return the number of texts that the guard could not look at completely."""
        return sum(self._by(c, FAILED_TEXTS, guard, "guard").total() for _, c in self._steps)

    @staticmethod
    def _by(
        counts: Counter[tuple[str, Labels]], metric: MetricDeclaration, guard: str, label: str
    ) -> Counter[str]:
        found: Counter[str] = Counter()
        for (name, labels), count in counts.items():
            if name == metric.name and (values := dict(labels))["guard"] == guard:
                found[values[label]] += count
        return found

    def _chart(self, names: "tuple[str, ...] | list[str]", counts: list[Counter[str]]) -> Chart:
        return Chart(
            times=[start for start, _ in self._steps],
            series=[
                Series(label=name, values=[float(each[name]) for each in counts]) for name in names
            ],
            unit="",
        )
