"""Logs one line for a share of requests and for each failure, without delaying answers.

Lines never hold inputs or keys. A thread writes the collected lines once a second. The number of
lines a second is bounded. One more line counts the omitted lines.
"""

import asyncio
import logging
from typing import Any, Final, Self
from zlib import crc32

from gateway.api.request_state import RequestState
from gateway.events.hit_run import HitRun
from gateway.tasks import PeriodicTask
from gateway.types import ID_DIGITS, Principal, RequestEvent, RequestId, Usage

FAULT: Final = 500
"""The lowest status that is logged."""
_INTERVAL = 1.0
_ITEMS = ("hit", "collapsed", "computed", "failed")
_log = logging.getLogger("gateway.requests")
Fields = dict[str, Any]  # of a line of JSON


class RequestLines:
    """Collects up to `per_second` lines. Requests that did not fail take at most half of them.

    The id alone decides whether a request is in the sampled `share`, so everybody who knows the id
    comes to the same decision.
    """

    def __init__(self, *, share: float, per_second: int) -> None:
        self.every = round(1 / share) if share > 0 else 0
        """One request of this many that did not fail is logged. With 0, none is logged."""
        self._most = per_second
        self._lines: list[tuple[int, Fields]] = []
        self._left_out = 0
        self._polling = PeriodicTask(
            self.write, interval=_INTERVAL, failure="lines of requests were not written"
        )

    async def __aenter__(self) -> Self:
        await self._polling.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._polling.__aexit__(*exc_info)
        await self.write()

    def add(self, state: RequestState, duration: float) -> None:
        """Log a request that has ended after `duration` seconds, if it failed or is sampled."""
        if state.status >= FAULT or state.is_fault:
            self._add(logging.WARNING, state, duration)
        elif self.every and is_sampled(state.id, self.every):
            self._add(logging.INFO, state, duration)

    def add_hits(self, run: HitRun, stem: str, count: int, duration: float) -> None:
        """Log the sampled hits among the `count` hits of a run that begins with the first."""
        every = self.every
        if not every:
            return
        first = run.first + (every - 1 - run.first) % every
        for number in range(first, run.first + count, every):
            if self._has_room(logging.INFO):
                id_ = f"{stem}{number:0{ID_DIGITS}x}"
                self._lines.append((logging.INFO, _fields_of_hit(id_, run.pattern, duration)))

    def add_failure(
        self, id_: str, route: str, principal: Principal | None, *, status: int, code: str
    ) -> None:
        """Log a request to a route without inference, if it failed."""
        if status < FAULT or not self._has_room(logging.WARNING):
            return
        fields = {"request_id": id_, "route": route, "status": status, "code": code}
        if principal is not None:
            fields |= {"tenant": principal.tenant, "key": principal.key}
        self._lines.append((logging.WARNING, fields))

    async def write(self) -> None:
        """Write the collected lines."""
        lines, left_out = self._lines, self._left_out
        self._lines, self._left_out = [], 0
        if lines or left_out:
            await asyncio.to_thread(_write, lines, left_out)

    def _add(self, level: int, state: RequestState, duration: float) -> None:
        if self._has_room(level):
            self._lines.append((level, _fields(state, duration)))

    def _has_room(self, level: int) -> bool:
        most = self._most if level >= logging.WARNING else (self._most + 1) // 2
        if len(self._lines) < most:
            return True
        self._left_out += 1
        return False


def is_sampled(id_: RequestId, every: int) -> bool:
    """Return whether a request is one of `every` requests, by the number at the end of its id."""
    try:
        number = int(id_[-ID_DIGITS:], 16)
    except ValueError:  # an id that was given to it
        number = crc32(id_.encode())
    return number % every == every - 1


def _fields(state: RequestState, duration: float) -> Fields:
    principal, admission = state.principal, state.admitted - state.started
    fields: Fields = {
        "request_id": state.id,
        "trace_id": state.span.traceparent[3:35],
        "route": state.route.template,
        "task": state.task,
        "model": state.model,
        "revision": state.revision,
        "tenant": "" if principal is None else principal.tenant,
        "key": "" if principal is None else principal.key,
        "status": state.status,
        "code": state.code,
        "items": _items(state.usage),
        "rows": state.usage.rows,
        "tokens": state.usage.tokens,
        "phases": {
            "admission": round(admission, 6),
            "inference": round(max(0.0, duration - admission), 6),
        },
        "request_bytes": 0 if state.parsed is None else state.parsed.length,
        "answer_bytes": state.answer_length,
    }
    told = {name: value for name, value in fields.items() if value not in ("", 0)}
    return told | {"duration": round(duration, 6)}


def _fields_of_hit(id_: str, event: RequestEvent, duration: float) -> Fields:
    return {
        "request_id": id_,
        "task": event.task,
        "model": event.model,
        "revision": event.revision,
        "tenant": event.tenant,
        "key": event.key,
        "status": event.status,
        "items": _items(event.usage),
        "duration": round(duration, 6),
    }


def _items(usage: Usage) -> dict[str, int]:
    return {name: count for name in _ITEMS if (count := getattr(usage, name))}


def _write(lines: list[tuple[int, Fields]], left_out: int) -> None:
    for level, fields in lines:
        _log.log(level, "request", extra=fields)
    if left_out:
        _log.warning("lines of requests were left out", extra={"count": left_out})
