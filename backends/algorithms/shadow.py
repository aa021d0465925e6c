"""Mirrors a fraction of a model's items to a shadow revision, and counts how results differ."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithm, ModelAlgorithms
from sluicegate.backends.algorithms.comparison import compare
from sluicegate.backends.algorithms.split import hash_fraction
from sluicegate.backends.errors import BackendError
from sluicegate.backends.pipelines.ask import AlgorithmContext, encode_result
from sluicegate.backends.types import ShadowStatistics
from sluicegate.wire.plans import Shadow

_log = logging.getLogger(__name__)
# Items that may be mirrored at a time, and the seconds each of them may take.
_MOST = 8
_TIMEOUT = 10.0
# Above this utilization of the device, nothing is mirrored.
_BUSY = 0.7
_ALL = 100


class Mirror:
    """Sends items to shadow revisions in background tasks, and counts how the results differ.

    A mirror has no queue. While `most` mirrored items run, or while the device is busy, the mirror
    skips new items and counts them.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        busy_share: Callable[[], float],
        most: int = _MOST,
        timeout: float = _TIMEOUT,
    ) -> None:
        self._clock = clock
        self._busy_share = busy_share
        self._most = most
        self._timeout = timeout
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._outcomes: Counter[tuple[str, str, str, str]] = Counter()
        self._largest: dict[tuple[str, str, str], float] = {}

    def offer(
        self,
        shadow: "MirroringAlgorithm",
        item: Any,
        parameters: Any,
        *,
        answer: Any,
        ask: AlgorithmContext,
    ) -> None:
        """Send an answered item to the shadow revision in the background.

        If too many mirrored items run or the device is busy, the item is skipped.
        """
        if len(self._tasks) >= self._most or self._busy_share() >= _BUSY:
            self._count(shadow, ask.revision, "skipped")
            return
        ask.note_shadow(shadow.number)
        in_background = ask.in_background(deadline=self._clock() + self._timeout)
        task = asyncio.create_task(self._run(shadow, item, parameters, answer, in_background))
        self._tasks[task] = shadow.names[1]
        task.add_done_callback(self._tasks.pop)

    def shadows(self) -> set[str]:
        """Return the names of the shadow revisions that run items at present."""
        return set(self._tasks.values())

    async def close(self) -> None:
        """Cancel all tasks and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def statistics(self) -> ShadowStatistics:
        """Return the counts since the process started."""
        return ShadowStatistics(outcomes=dict(self._outcomes), largest=dict(self._largest))

    async def _run(
        self,
        shadow: "MirroringAlgorithm",
        item: Any,
        parameters: Any,
        answer: Any,
        ask: AlgorithmContext,
    ) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                other = await shadow.shadow.run(item, parameters, ask)
            # Compare parsed JSON, because one result may be arrays and the other encoded JSON.
            found = compare(_as_json(answer), _as_json(other))
        except (BackendError, TimeoutError):
            self._count(shadow, ask.revision, "failed")
        except Exception:  # noqa: BLE001 - a shadow's failure is logged, never raised
            _log.exception("a shadow failed unexpectedly", extra={"model": shadow.names[1]})
            self._count(shadow, ask.revision, "failed")
        else:
            is_close = not found.changed and found.largest <= shadow.tolerance
            outcome = "changed" if found.changed else "same" if is_close else "moved"
            self._count(shadow, ask.revision, outcome)
            model, name = shadow.names
            pair = (model, ask.revision, name)
            self._largest[pair] = max(self._largest.get(pair, 0.0), found.largest)

    def _count(self, shadow: "MirroringAlgorithm", revision: str, outcome: str) -> None:
        model, name = shadow.names
        self._outcomes[model, revision, name, outcome] += 1


class MirroringAlgorithm(Algorithm):
    """Answers like `below`, and mirrors a fraction of the items to `shadow`.

    A hash of the item and its scope (the tenant) selects the mirrored items. Mirroring never
    affects the item's caller. Failures of `shadow` are only counted, and the caller is not charged
    for the mirrored rows and their time.
    """

    def __init__(
        self,
        *,
        below: Algorithm,
        shadow: Algorithm,
        names: tuple[str, str],
        plan: Shadow,
        mirror: Mirror,
        revision: str = "",
    ) -> None:
        """`names` are the names of the model and of the shadow revision.

        `revision` is the revision that answers. It is empty if `below` chooses the revision.
        """
        self._below = below
        self._revision = revision
        self.shadow = shadow
        self.names = names
        self.number = plan.revision
        self.tolerance = plan.tolerance
        self._share = plan.share / _ALL
        self._mirror = mirror
        self.version = below.version

    @override
    async def run(self, item: Any, parameters: Any, ask: AlgorithmContext) -> Any:
        if self._revision:
            ask.note_revision(self.names[0], self._revision)
        answer = await self._below.run(item, parameters, ask)
        if hash_fraction("shadow", ask.scope, item) < self._share:
            self._mirror.offer(self, item, parameters, answer=answer, ask=ask)
        return answer


def mirrored_model(
    served_model: ModelAlgorithms,
    shadow: ModelAlgorithms,
    *,
    plan: Shadow,
    mirror: Mirror,
    revision: str = "",
) -> ModelAlgorithms | None:
    """Return the model with mirroring, or `None` if it has no task in common with `shadow`.

    `revision` is the number of the revision that answers. It is empty if a traffic split chooses
    the revision.
    """
    common: Mapping[Any, Algorithm] = {
        task: MirroringAlgorithm(
            below=algorithm,
            shadow=shadow.algorithms[task],
            names=(served_model.info.name, shadow.info.name),
            plan=plan,
            mirror=mirror,
            revision=revision,
        )
        for task, algorithm in served_model.algorithms.items()
        if task in shadow.algorithms
    }
    if not common:
        return None
    return ModelAlgorithms(
        info=served_model.info,
        encoder=served_model.encoder,
        algorithms={**served_model.algorithms, **common},
        tokens=served_model.tokens,
    )


def _as_json(answer: Any) -> Any:
    return orjson.loads(encode_result(answer))
