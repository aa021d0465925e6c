"""Lists the scenarios: when requests are due, their texts, and what must hold at the end."""

from collections.abc import Callable, Iterator
from itertools import accumulate

import msgspec

_WARM = 5.0
_STEPS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
_SPIKE = 10.0


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a run: `rate` requests a second for `duration` seconds.

    A phase that is not judged only opens connections and fills caches.
    """

    name: str
    rate: float
    duration: float
    is_judged: bool = True
    is_overload: bool = False
    """The rate is above the capacity, so the system must refuse some requests."""
    new_texts: bool = False
    """The texts differ from the texts of all earlier phases."""

    @property
    def arrivals(self) -> int:
        """Number of requests that are due in this phase."""
        return round(self.rate * self.duration)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The phases of a run, one after another.

    If `callers` is set, phases have no rates. Instead, each of `callers` callers sends its next
    request after an answer.
    """

    phases: tuple[Phase, ...]
    callers: int = 0

    @property
    def duration(self) -> float:
        """Seconds until the last request is due."""
        return sum(phase.duration for phase in self.phases)

    @property
    def arrivals(self) -> int:
        """Number of requests that are due."""
        return sum(phase.arrivals for phase in self.phases)

    def spans(self) -> Iterator[tuple[Phase, float, float]]:
        """Yield each phase with its begin and its end."""
        ends = accumulate(phase.duration for phase in self.phases)
        for phase, end in zip(self.phases, ends, strict=True):
            yield phase, end - phase.duration, end


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of run, and the criteria of its judged phases.

    A criterion that is `None` does not apply.
    """

    question: str
    phases: Callable[[float, float], tuple[Phase, ...]]
    """Takes the rate and the total seconds of the phases, and returns the phases."""
    seconds: float = 60.0
    load: float = 0.6
    """The rate as a share of the capacity, if the caller gives no rate."""
    zipf: float = 1.0
    """The exponent of the Zipf distribution of repeated texts; with 0, no text repeats."""
    has_faults: bool = False
    good: float | None = 0.99
    """The least share of requests answered in time. Requests sent in an overload do not count."""
    errors: float = 0.0
    """The largest share of answers other than 200, 429, and 503 with `Retry-After`."""
    dropped: float = 0.001
    """The largest share of requests that could not be sent when they were due."""
    goodput: float | None = None
    """The least goodput in any three seconds of an overload, as a share of the capacity."""
    recovery: float = 0.0
    """Seconds after an overload during which requests do not count for `good`."""
    ideal_hits: float | None = None
    """The least hit ratio, divided by the hit ratio of a cache that forgets nothing."""
    drift: float | None = None
    """The largest p99 of the last fifth of the time, as a multiple of the first fifth's p99."""


def _steady(rate: float, seconds: float) -> tuple[Phase, ...]:
    warm = Phase(name="warm-up", rate=rate, duration=min(_WARM, seconds / 4), is_judged=False)
    return warm, Phase(name="steady", rate=rate, duration=seconds)


def _sweep(rate: float, seconds: float) -> tuple[Phase, ...]:
    each = seconds / len(_STEPS)
    return tuple(Phase(name=f"x {step:g}", rate=rate * step, duration=each) for step in _STEPS)


def _spike(rate: float, seconds: float) -> tuple[Phase, ...]:
    warm = Phase(name="warm-up", rate=rate, duration=min(_WARM, seconds / 8), is_judged=False)
    before = Phase(name="before", rate=rate, duration=seconds * 0.25)
    spike = Phase(name="spike", rate=rate * _SPIKE, duration=seconds * 0.35, is_overload=True)
    return warm, before, spike, Phase(name="after", rate=rate, duration=seconds * 0.4)


def _cache(rate: float, seconds: float) -> tuple[Phase, ...]:
    cold, warm = (Phase(name=n, rate=rate, duration=seconds / 3) for n in ("cold", "warm"))
    return cold, warm, Phase(name="other texts", rate=rate, duration=seconds / 3, new_texts=True)


SCENARIOS = {
    "steady": Scenario(question="Is a constant rate answered in time?", phases=_steady),
    "sweep": Scenario(
        question="How do latency and errors change with the rate?",
        phases=_sweep,
        seconds=80.0,
        load=1.0,
        zipf=0.0,
        good=None,
    ),
    "spike": Scenario(
        question="What happens to answers when ten times as many callers come, and go?",
        phases=_spike,
        zipf=0.0,
        goodput=0.9,
        recovery=2.0,
        dropped=0.01,
    ),
    "soak": Scenario(
        question="Does anything get slower with time?",
        phases=_steady,
        seconds=1800.0,
        drift=1.5,
    ),
    "chaos": Scenario(
        question="What do callers notice when a backend and Redis are killed?",
        phases=_steady,
        load=0.5,
        good=0.98,
        errors=0.001,
        has_faults=True,
    ),
    "cache": Scenario(
        question="How much does the cache answer: cold, warm, and after texts have changed?",
        phases=_cache,
        ideal_hits=0.95,
    ),
}
