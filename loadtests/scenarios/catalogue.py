"""Lists the scenarios: their phases, their texts, and what must hold at their end."""

from collections.abc import Callable

import msgspec

from loadtests.scenarios.plan import Phase

_WARM = 5.0
_STEPS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
_SPIKE = 10.0


class Criteria(msgspec.Struct, frozen=True, kw_only=True):
    """What must hold of the judged phases; `None` is not judged."""

    good: float | None = 0.99
    """The least share of answers in time, of what was sent while there was no overload."""
    errors: float = 0.0
    """The largest share of answers other than 200, 429, and 503 with `Retry-After`."""
    dropped: float = 0.001
    """The largest share of requests that could not be sent when they were due."""
    goodput: float | None = None
    """The least goodput over three seconds of an overload, of the capacity."""
    recovery: float = 0.0
    """Seconds after an overload that count for no share."""
    ideal_hits: float | None = None
    """The least hit ratio, of what a cache that forgets nothing would have."""
    drift: float | None = None
    """The largest p99 of the last fifth, in times that of the first."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of run. `phases` takes a rate and the seconds of all phases together."""

    question: str
    phases: Callable[[float, float], tuple[Phase, ...]]
    seconds: float
    load: float
    """Of the capacity: the rate where none is given."""
    zipf: float
    """The exponent of how often texts repeat; 0 is never."""
    criteria: Criteria
    has_faults: bool = False


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
    cold = Phase(name="cold", rate=rate, duration=seconds / 3)
    warm = Phase(name="warm", rate=rate, duration=seconds / 3)
    return cold, warm, Phase(name="other texts", rate=rate, duration=seconds / 3, new_texts=True)


SCENARIOS = {
    "steady": Scenario(
        question="Is a constant rate answered in time?",
        phases=_steady,
        seconds=60.0,
        load=0.6,
        zipf=1.0,
        criteria=Criteria(),
    ),
    "sweep": Scenario(
        question="How do latency, errors and cost change with the rate?",
        phases=_sweep,
        seconds=80.0,
        load=1.0,
        zipf=0.0,
        criteria=Criteria(good=None),
    ),
    "spike": Scenario(
        question="What happens to answers when ten times as many callers come, and go?",
        phases=_spike,
        seconds=60.0,
        load=0.6,
        zipf=0.0,
        criteria=Criteria(goodput=0.9, recovery=2.0, dropped=0.01),
    ),
    "soak": Scenario(
        question="Does anything grow or get slower with time?",
        phases=_steady,
        seconds=1800.0,
        load=0.6,
        zipf=1.0,
        criteria=Criteria(drift=1.5),
    ),
    "chaos": Scenario(
        question="What do callers notice when a backend and Redis are killed?",
        phases=_steady,
        seconds=60.0,
        load=0.5,
        zipf=1.0,
        criteria=Criteria(good=0.98, errors=0.001),
        has_faults=True,
    ),
    "cache": Scenario(
        question="How much does the cache answer: cold, warm, and after texts have changed?",
        phases=_cache,
        seconds=60.0,
        load=0.6,
        zipf=1.0,
        criteria=Criteria(ideal_hits=0.95),
    ),
}
