"""Mirrors a share of a model's items to another revision, and counts how the answers compare."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from typing_extensions import override

from backends.algorithms.base import Algorithm, ModelAlgorithms
from backends.algorithms.comparison import compare
from backends.algorithms.split import hash_fraction
from backends.errors import BackendError
from backends.pipelines.ask import AlgorithmContext, encode_result
from backends.plans import Shadow
from backends.types import ShadowStatistics

_log = logging.getLogger(__name__)
# Items that are mirrored at a time, and the seconds each may take.
_MOST = 8
_TIMEOUT = 10.0
# A device with less to spare mirrors nothing.
_BUSY = 0.7
_ALL = 100


class Mirror:
    """Owns the tasks that mirror items, and counts how their answers compare.

    While enough mirrored items run or the device is busy, others are skipped and counted, never
    queued.
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
        self._tasks: set[asyncio.Task[None]] = set()
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
        """Mirror an item that was answered, if there is room; returns at once."""
        if len(self._tasks) >= self._most or self._busy_share() >= _BUSY:
            self._count(shadow, ask.arm, "skipped")
            return
        ask.note_shadow(shadow.number)
        in_background = ask.in_background(deadline=self._clock() + self._timeout)
        task = asyncio.create_task(self._run(shadow, item, parameters, answer, in_background))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Call off what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def statistics(self) -> ShadowStatistics:
        """Return what was counted since the process began."""
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
            # Both as callers would read them: a result may be arrays, or bytes of JSON.
            found = compare(_as_json(answer), _as_json(other))
        except (BackendError, TimeoutError):
            self._count(shadow, ask.arm, "failed")
        except Exception:  # noqa: BLE001 - a shadow's failure is logged, never raised
            _log.exception("a shadow failed unexpectedly", extra={"model": shadow.names[1]})
            self._count(shadow, ask.arm, "failed")
        else:
            is_close = not found.changed and found.largest <= shadow.tolerance
            outcome = "changed" if found.changed else "same" if is_close else "moved"
            self._count(shadow, ask.arm, outcome)
            model, name = shadow.names
            pair = (model, ask.arm, name)
            self._largest[pair] = max(self._largest.get(pair, 0.0), found.largest)

    def _count(self, shadow: "MirroringAlgorithm", arm: str, outcome: str) -> None:
        model, name = shadow.names
        self._outcomes[model, arm, name, outcome] += 1


class MirroringAlgorithm(Algorithm):
    """Answers as `below` does, and mirrors a share of the items.

    A hash of scope and item selects the mirrored items, as with splits between revisions. A
    mirrored item never affects the caller: neither its failure, nor its rows, nor its time.
    """

    def __init__(
        self,
        *,
        below: Algorithm,
        shadow: Algorithm,
        names: tuple[str, str],
        plan: Shadow,
        mirror: Mirror,
        arm: str = "",
    ) -> None:
        """`names` are those of the model and of the revision that is mirrored to.

        `arm` is the revision that answers, where `below` does not choose it.
        """
        self._below = below
        self._arm = arm
        self.shadow = shadow
        self.names = names
        self.number = plan.revision
        self.tolerance = plan.tolerance
        self._share = plan.share / _ALL
        self._mirror = mirror
        self.version = below.version

    @override
    async def run(self, item: Any, parameters: Any, ask: AlgorithmContext) -> Any:
        if self._arm:
            ask.note_arm(self.names[0], self._arm)
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
    arm: str = "",
) -> ModelAlgorithms | None:
    """Return an endpoint whose items are mirrored; `None` where the two have no task in common.

    `arm` is the revision that answers; empty where several share the items.
    """
    common: Mapping[Any, Algorithm] = {
        task: MirroringAlgorithm(
            below=algorithm,
            shadow=shadow.algorithms[task],
            names=(served_model.info.name, shadow.info.name),
            plan=plan,
            mirror=mirror,
            arm=arm,
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
