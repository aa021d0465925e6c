"""Counts what other thresholds of a guard would have decided about sampled past texts."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from sluicegate.gateway.telemetry.guard_decisions import (
    GuardDecision,
    KeptDecisions,
    key_of,
    subjects_of,
)
from sluicegate.wire.guards import (
    VERDICTS,
    AnyDetector,
    DetectorScores,
    GuardConfig,
    Verdict,
    thresholds_of,
)

if TYPE_CHECKING:  # see `gateway.operations.context`
    from sluicegate.gateway.redis.connect import PipelinedClient
    from sluicegate.gateway.runtime.control import Control

_read = msgspec.msgpack.Decoder(KeptDecisions).decode
_NO_SCORES: Final = DetectorScores()
_MOST_WORKERS: Final = 64


class DetectorRecount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of sampled texts in which a detector finds something."""

    before: int
    after: int


class GuardRecount(msgspec.Struct, frozen=True, kw_only=True):
    """What a guard decides about sampled past texts, before and after a change.

    Rare verdicts are a larger share of the sample than of the traffic.
    """

    decisions: int
    """The number of counted texts."""
    since: float | None
    """The Unix time of the oldest of them, in seconds; `null` without any."""
    unknown: int
    """The number of further texts whose verdicts cannot be told: their scores do not say enough,
    another revision of the model judged them, or a detector in `uncounted` could decide."""
    changed: int
    """The number of texts whose verdict changes."""
    before: dict[Verdict, int]
    """The number of texts by verdict of the present guard."""
    after: dict[Verdict, int]
    """The number of texts by verdict of the changed guard."""
    detectors: dict[str, DetectorRecount]
    """The counts of each detector."""
    uncounted: list[str]
    """Detectors whose findings are unknown, because they are new or look for something else. A
    change of their model, `expected`, patterns or examples, or of the guard's `model`, `allow` or
    `overlap` has this effect."""


Recounts = dict[str, GuardRecount]


async def kept_decisions(
    control: "Control", cache_redis: "PipelinedClient", guard: str
) -> list[KeptDecisions] | None:
    """Return the sampled decisions of a guard, one entry a worker, of at most 64 workers.

    Return `None` if the cache Redis, or a node of its cluster, cannot be reached.
    """
    workers = sorted(await control.workers())[:_MOST_WORKERS]
    try:
        replies = await cache_redis.execute(
            [(b"HGET", key_of(one), guard.encode()) for one in workers]
        )
    except OSError:
        return None
    found = []
    for reply in replies:
        if isinstance(reply, Exception):
            return None
        with contextlib.suppress(msgspec.MsgspecError):  # of a worker of another version
            found += [_read(reply)] if reply else []
        await asyncio.sleep(0)  # decoding many of them takes long
    return found


async def recount_guards(
    control: "Control",
    cache_redis: "PipelinedClient",
    present: Mapping[str, GuardConfig],
    proposed: Mapping[str, GuardConfig],
) -> Recounts | None:
    """Count the verdicts of each guard that changes. Return `None` without the cache Redis."""
    changed = [
        name
        for name, guard in proposed.items()
        if name in present and _without_texts(guard) != _without_texts(present[name])
    ]
    if not changed:
        return {}
    found: Recounts = {}
    for name in changed:
        kept = await kept_decisions(control, cache_redis, name)
        if kept is None:
            return None
        found[name] = recount(present[name], proposed[name], kept)
    return found


def _without_texts(guard: GuardConfig) -> GuardConfig:
    """Return a guard without what no verdict depends on."""
    return replace(guard, message="", holdback=None)


def recount(
    present: GuardConfig, proposed: GuardConfig, kept: Sequence[KeptDecisions]
) -> GuardRecount:
    """Count the verdicts of two guards about the same texts by the scores that detectors gave."""
    old, new = subjects_of(present), subjects_of(proposed)
    # A detector that was renamed has the scores of its old name.
    former = {subject: name for name, subject in old.items()}
    sources = {
        name: name if old.get(name) == subject else former.get(subject)
        for name, subject in new.items()
    }
    decisions = [one for each in kept if each.subjects == old for one in each.decisions]
    revision = max(decisions, key=lambda one: one.time).revision if decisions else ""
    before, after = (dict.fromkeys(VERDICTS, 0) for _ in range(2))
    found_before, found_after = Counter[str](), Counter[str]()
    times, changed = [], 0
    for one in decisions:
        was = _judge(one, present, {name: name for name in old})
        becomes = _judge(one, proposed, sources)
        if was is None or becomes is None or one.revision != revision:
            continue
        times.append(one.time)
        changed += was[0] != becomes[0]
        before[was[0]] += 1
        after[becomes[0]] += 1
        found_before.update(was[1])
        found_after.update(becomes[1])
    uncounted = [name for name, source in sources.items() if source is None]
    return GuardRecount(
        decisions=len(times),
        since=min(times, default=None),
        unknown=len(decisions) - len(times),
        changed=changed,
        before=before,
        after=after,
        detectors={
            each: DetectorRecount(before=found_before[each], after=found_after[each])
            for each in {**old, **new}
            if each not in uncounted
        },
        uncounted=uncounted,
    )


def _judge(
    decision: GuardDecision, guard: GuardConfig, sources: Mapping[str, str | None]
) -> tuple[Verdict, list[str]] | None:
    """Return the verdict of a guard, and the detectors that find something; `None` if unknown.

    `sources` has the name of each detector in the scores, or `None` if they do not have it.
    """
    if decision.error and not decision.findings:
        return guard.on_error, []
    if decision.scores is None:  # A detector has blocked, and another one has failed.
        return None
    strongest, possible, names = 0, 0, []
    for detector in guard.detectors:
        source, action = sources[detector.name], VERDICTS.index(detector.action)
        if source is None:
            possible = max(possible, action)
            continue
        found = _finds(detector, decision.scores.get(source, _NO_SCORES))
        if found is None:
            return None
        if found:
            names.append(detector.name)
            strongest = max(strongest, action)
    return (VERDICTS[strongest], names) if strongest >= possible else None


def _finds(detector: AnyDetector, scores: DetectorScores) -> bool | None:
    thresholds = thresholds_of(detector)
    if not thresholds:
        return bool(scores.best)
    if any(score >= thresholds.get(label, 2.0) for label, score in scores.best.items()):
        return True
    unseen = [least for label, least in thresholds.items() if label not in scores.best]
    return False if min(unseen, default=2.0) >= scores.least else None
