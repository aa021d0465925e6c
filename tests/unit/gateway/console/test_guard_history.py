"""The verdicts and findings of guards in the last half hour, by half minutes."""

from itertools import pairwise

from sluicegate.gateway.console.guard_history import GuardHistory
from sluicegate.gateway.console.traffic import Reading
from sluicegate.gateway.telemetry.metric_reading import Series


def texts(guard: str, verdict: str) -> Series:
    return "sluicegate_guard_texts_total", (("guard", guard), ("verdict", verdict))


def findings(detector: str, action: str) -> Series:
    labels = (("action", action), ("detector", detector), ("guard", "chat"))
    return "sluicegate_guard_findings_total", labels


def kept(*readings: tuple[float, dict[Series, float]]) -> GuardHistory:
    history = GuardHistory()
    made = [Reading(at=at, values=values) for at, values in readings]
    for before, after in pairwise(made):
        history.add(before, after)
    return history


def test_texts_are_counted_by_verdict_in_each_half_minute() -> None:
    block, other = texts("chat", "block"), texts("mail", "block")

    history = kept(
        (10.0, {block: 5.0}), (20.0, {block: 7.0, other: 9.0}), (31.0, {block: 8.0}), (35.0, {})
    )

    chart = history.of("chat").verdicts
    assert chart.times == [0.0, 30.0]
    assert {each.label: each.values for each in chart.series} == {
        "allow": [0.0, 0.0],
        "flag": [0.0, 0.0],
        "redact": [0.0, 0.0],
        "block": [2.0, 1.0],
    }


def test_the_detectors_that_find_most_are_drawn_and_all_are_counted() -> None:
    found = {findings(f"d{number}", "flag"): float(number) for number in range(1, 10)}

    history = kept((0.0, {}), (1.0, found))

    assert [each.label for each in history.of("chat").findings.series] == [
        f"d{number}" for number in range(9, 2, -1)
    ]
    assert history.of("chat").found["d1"] == 1


def test_steps_older_than_half_an_hour_are_dropped() -> None:
    allow = texts("chat", "allow")

    history = kept(*[(float(at), {allow: at / 10}) for at in range(0, 4000, 10)])

    times = history.of("chat").verdicts.times
    assert (times[-1] - times[0], len(times)) == (1770.0, 60)


def test_failed_texts_of_a_guard_are_added_up() -> None:
    failed: Series = ("sluicegate_guard_failed_texts_total", (("guard", "chat"),))

    history = kept((0.0, {failed: 1.0}), (1.0, {failed: 3.0}), (40.0, {failed: 4.0}))

    assert (history.of("chat").failed, history.of("mail").failed) == (3, 0)


def test_texts_are_counted_since_the_first_reading_or_the_oldest_step() -> None:
    allow = texts("chat", "allow")
    readings = [(float(at), {allow: at / 10}) for at in range(40, 4000, 10)]

    young, old = kept(*readings[:3]).of("chat"), kept(*readings).of("chat")

    assert (young.since, young.texts) == (40.0, 2)
    assert (old.since, old.texts) == (2220.0, 178)
    assert GuardHistory().of("chat").since is None
