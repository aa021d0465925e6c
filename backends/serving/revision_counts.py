"""Counts items by revision, for models with a traffic split or a shadow revision."""

from collections import Counter, defaultdict
from typing import Any

from sluicegate.backends.types import ShadowStatistics
from sluicegate.wire.plans import RevisionStatistics, duration_bucket

# At most this many labels of a revision are counted by name, because callers choose zero-shot
# labels freely.
_MOST_LABELS = 200
_OTHERS = "(others)"


class _Counts:
    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.durations: Counter[int] = Counter()
        self.seconds = 0.0
        self.labels: Counter[str] = Counter()


class RevisionCounts:
    """Counts outcomes, durations and first labels by model and revision."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[str, str], _Counts] = defaultdict(_Counts)

    def count(self, revision: tuple[str, str], outcome: str, duration: float, label: str) -> None:
        """Count an item that has ended; `revision` is a model's name and its revision's number."""
        counts = self._counts[revision]
        counts.outcomes[outcome] += 1
        counts.durations[duration_bucket(duration)] += 1
        counts.seconds += duration
        if label:
            is_new = label not in counts.labels and len(counts.labels) >= _MOST_LABELS
            counts.labels[_OTHERS if is_new else label] += 1

    def statistics(self, shadows: ShadowStatistics) -> list[RevisionStatistics]:
        """Return the counts by revision, and the comparisons with shadow revisions' results."""
        compared: defaultdict[tuple[str, str], dict[str, dict[str, int]]] = defaultdict(dict)
        for (model, revision, shadow, outcome), number in shadows.outcomes.items():
            compared[model, revision].setdefault(shadow.rpartition("@")[2], {})[outcome] = number
        largest: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for (model, revision, shadow), difference in shadows.largest.items():
            largest[model, revision][shadow.rpartition("@")[2]] = difference
        return [
            RevisionStatistics(
                model=model,
                arm=revision,
                outcomes=dict(counts.outcomes),
                durations=dict(counts.durations),
                seconds=counts.seconds,
                labels=dict(counts.labels),
                shadows=compared[model, revision],
                largest=largest[model, revision],
            )
            for (model, revision), counts in sorted(self._counts.items())
        ]


def first_label(answer: Any) -> str:
    """Return the first label or the choice of a result, or an empty string."""
    match answer:
        case {"labels": [{"label": str(label)}, *_]}:
            return label
        case {"choice": int(choice)}:
            return str(choice)
        case _:
            return ""
