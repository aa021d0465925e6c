"""Chooses which models leave the memory, by GreedyDual-Size-Frequency.

The algorithm is from L. Cherkasova, "Improving WWW Proxies Performance with
Greedy-Dual-Size-Frequency Caching Policy", HP Labs report HPL-98-69R1, 1998.
"""

from collections import Counter
from collections.abc import Collection


class EvictionPolicy:
    """Ranks models by `clock + frequency * load time / size`; the lowest rank is evicted first.

    A model that is used often, loads slowly or is small has a high rank. The clock advances to the
    rank of each evicted model, so a model that is no longer used loses its lead over time. An
    evicted model begins anew with the frequency 0.
    """

    def __init__(self) -> None:
        self._clock = 0.0
        self._frequencies: Counter[str] = Counter()
        self._ranks: dict[str, float] = {}

    def use(self, name: str, *, load_time: float, size_bytes: int) -> None:
        """Count a call of a model."""
        self._frequencies[name] += 1
        value = self._frequencies[name] * load_time / max(size_bytes, 1)
        self._ranks[name] = self._clock + value

    def rank(self, name: str) -> float:
        """Return the rank of a model; a model without calls has the rank of the clock."""
        return self._ranks.get(name, self._clock)

    def evict(self, name: str) -> None:
        """Forget a model that has been evicted, and advance the clock."""
        self._clock = max(self._clock, self.rank(name))
        self._frequencies.pop(name, None)
        self._ranks.pop(name, None)

    def victims(self, sizes: dict[str, int], *, excess_bytes: int) -> Collection[str]:
        """Return the models to evict so that at least `excess_bytes` are freed.

        `sizes` has the bytes of each model that may be evicted. If all of them together are too
        small, the result is empty.
        """
        chosen: list[str] = []
        for name in sorted(sizes, key=self.rank):
            if excess_bytes <= 0:
                break
            chosen.append(name)
            excess_bytes -= sizes[name]
        return chosen if excess_bytes <= 0 else []
