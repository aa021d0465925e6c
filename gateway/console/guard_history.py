"""Counts the verdicts and findings of guards in each half minute of the last half hour."""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

import msgspec

from sluicegate.gateway.console.traffic import Reading
from sluicegate.gateway.console.usage_series import MOST_SERIES, Chart, Series
from sluicegate.gateway.telemetry.guard_verdicts import FAILED_TEXTS, FINDINGS, TEXTS
from sluicegate.wire.guards import VERDICTS

METRICS: Final = tuple([metric.family for metric in (TEXTS, FINDINGS, FAILED_TEXTS)])
"""The metrics that are read, without their ending `_total`."""
_BY: Final = {TEXTS.name: "verdict", FINDINGS.name: "detector", FAILED_TEXTS.name: "guard"}
_STEP: Final = 30.0
_KEPT: Final = 60
_Counts = Counter[tuple[str, str]]
"""Numbers by metric, and by the value of the label that `_BY` names."""


class GuardActivity(msgspec.Struct, frozen=True, kw_only=True):
    """What a guard did in the kept half minutes."""

    since: float | None
    """The Unix time since which texts are counted, in seconds. `None` before the first reading."""
    texts: int
    failed: int
    """The number of texts that the guard could not look at completely."""
    found: Counter[str]
    """The number of findings of each detector."""
    verdicts: Chart
    """The numbers of texts by verdict."""
    findings: Chart
    """The numbers of findings of the detectors that find most."""


class GuardHistory:
    """Keeps the growth of the counters of guards."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, dict[str, _Counts]]] = deque(maxlen=_KEPT)
        self._first: float | None = None

    def add(self, before: Reading, after: Reading) -> None:
        """Add the growth between two readings."""
        if self._first is None:
            self._first = before.at
        start = after.at - after.at % _STEP
        if not self._steps or self._steps[-1][0] < start:
            self._steps.append((start, {}))
        while self._steps[0][0] <= start - _STEP * _KEPT:
            self._steps.popleft()
        by_guard = self._steps[-1][1]
        for series, value in after.values.items():
            name, labels = series
            if name in _BY and (grown := value - before.values.get(series, 0.0)) > 0:
                values = dict(labels)
                counts = by_guard.setdefault(values["guard"], Counter())
                counts[name, values[_BY[name]]] += round(grown)

    def of(self, guard: str) -> GuardActivity:
        """Return what a guard did."""
        steps = [by_guard.get(guard, Counter()) for _, by_guard in self._steps]
        total: _Counts = Counter()
        for each in steps:
            total.update(each)
        found = Counter({label: n for (name, label), n in total.items() if name == FINDINGS.name})
        most = [detector for detector, _ in found.most_common(MOST_SERIES)]
        return GuardActivity(
            since=self._since(),
            texts=sum(total[TEXTS.name, verdict] for verdict in VERDICTS),
            failed=total[FAILED_TEXTS.name, guard],
            found=found,
            verdicts=self._chart(TEXTS.name, VERDICTS, steps),
            findings=self._chart(FINDINGS.name, most, steps),
        )

    def _since(self) -> float | None:
        if self._first is None:
            return None
        return max(self._first, self._steps[0][0])

    def _chart(self, metric: str, labels: Iterable[str], steps: list[_Counts]) -> Chart:
        return Chart(
            times=[start for start, _ in self._steps],
            series=[
                Series(label=label, values=[float(each[metric, label]) for each in steps])
                for label in labels
            ],
            unit="",
        )
