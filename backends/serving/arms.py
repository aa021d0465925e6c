"""Counts items by the revision that answered, where several share them or one has a shadow."""

from collections import Counter, defaultdict
from typing import Any

from backends.plans import ArmStatistics, duration_bucket
from backends.types import ShadowStatistics

# Labels that are counted by name for one revision; zero-shot labels are the callers' own.
_MOST_LABELS = 200
_OTHERS = "(others)"


class _Counts:
    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.durations: Counter[int] = Counter()
        self.seconds = 0.0
        self.labels: Counter[str] = Counter()


class ArmCounts:
    """Counts outcomes, durations and first labels by model and revision."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[str, str], _Counts] = defaultdict(_Counts)

    def count(self, arm: tuple[str, str], outcome: str, duration: float, label: str) -> None:
        """Count the end of an item that the revision `arm` of a model answered."""
        counts = self._counts[arm]
        counts.outcomes[outcome] += 1
        counts.durations[duration_bucket(duration)] += 1
        counts.seconds += duration
        if label:
            is_new = label not in counts.labels and len(counts.labels) >= _MOST_LABELS
            counts.labels[_OTHERS if is_new else label] += 1

    def statistics(self, shadows: ShadowStatistics) -> list[ArmStatistics]:
        """Return the counts, with how answers of `shadows` compare to each revision's."""
        compared: defaultdict[tuple[str, str], dict[str, dict[str, int]]] = defaultdict(dict)
        for (model, arm, shadow, outcome), number in shadows.outcomes.items():
            compared[model, arm].setdefault(shadow.rpartition("@")[2], {})[outcome] = number
        largest: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for (model, arm, shadow), difference in shadows.largest.items():
            largest[model, arm][shadow.rpartition("@")[2]] = difference
        return [
            ArmStatistics(
                model=model,
                arm=arm,
                outcomes=dict(counts.outcomes),
                durations=dict(counts.durations),
                seconds=counts.seconds,
                labels=dict(counts.labels),
                shadows=compared[model, arm],
                largest=largest[model, arm],
            )
            for (model, arm), counts in sorted(self._counts.items())
        ]


def first_label(answer: Any) -> str:
    """Return the first label or the choice of an answer; empty where it has neither."""
    match answer:
        case {"labels": [{"label": str(label)}, *_]}:
            return label
        case {"choice": int(choice)}:
            return str(choice)
        case _:
            return ""
