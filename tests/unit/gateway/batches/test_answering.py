"""A line is asked until it is answered, as long as its batch has time and is not halted."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from sluicegate.gateway.batches.answering import CongestionWindow, LineAnswerer, Reply, Result
from sluicegate.gateway.batches.lines import Line, item_id
from sluicegate.gateway.ledger.batch_types import RequestBatch
from tests.unit.gateway.batches.test_lines import BATCH

pytestmark = pytest.mark.anyio
LINE = Line(number=1, custom_id="c", body=b"{}")
AT_ONCE = {"retry-after-ms": "1"}


class Script:
    """Answers with these statuses, the last one again and again."""

    def __init__(self, *statuses: int, body: bytes = b"{}", **headers: str) -> None:
        self.body = body
        self.statuses = list(statuses)
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.asked: list[str] = []
        self.late: list[int] = []
        self.was_asked = asyncio.Event()

    async def ask(
        self, batch: RequestBatch, request_id: str, body: bytes, *, late: int, left: float
    ) -> Reply:
        self.asked.append(request_id)
        self.late.append(late)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        headers = {"content-type": "application/json", **self.headers}
        self.was_asked.set()
        return Reply(status=status, headers=headers, body=self.body)


def answerer(script: Script, *, now: float = 0.0) -> LineAnswerer:
    return LineAnswerer(runner=script, most=4, wall=lambda: now)


def status_of(result: Result | None) -> Any:
    assert result is not None
    return msgspec.json.decode(result.line)["response"]["status_code"]


@pytest.mark.parametrize("refusals", [[429], [402], [503, 503, 504], [500, 500], [502]])
async def test_what_may_end_is_asked_again_under_one_id(refusals: Sequence[int]) -> None:
    script = Script(*refusals, 200)

    result = await answerer(script).answer(BATCH, LINE, asyncio.Event(), asyncio.Semaphore())

    assert result is not None
    assert result.is_success
    assert script.asked == [item_id(BATCH, LINE)] * (len(refusals) + 1)


@pytest.mark.parametrize(
    "refusals", [[503, 503, 503, 500, 500], [503] * 3 + [502] * 3, [504] * 20 + [402] * 20]
)
async def test_failures_of_one_kind_do_not_count_for_another(
    refusals: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.gateway.batches.answering._LONGEST_WAIT", 0.001)
    script = Script(*refusals, 200)

    result = await answerer(script).answer(BATCH, LINE, asyncio.Event(), asyncio.Semaphore())

    assert result is not None
    assert result.is_success


async def test_refusals_of_one_tenant_slow_down_no_other() -> None:
    script = Script(503, retry_after_ms="60000")
    answering = answerer(script)
    halt = asyncio.Event()
    refused = asyncio.create_task(answering.answer(BATCH, LINE, halt, asyncio.Semaphore()))
    await script.was_asked.wait()
    script.statuses = [200]

    other = msgspec.structs.replace(BATCH, tenant="other")
    await answering.answer(other, LINE, halt, asyncio.Semaphore())
    halt.set()
    await refused

    limits = {tenant: window.limit for tenant, window in answering._windows.items()}
    assert limits == {BATCH.tenant: 2, "other": 4}


async def test_answers_that_lack_items_for_want_of_room_slow_down() -> None:
    answering = answerer(PartialAnswers({503}))

    await answering.answer(BATCH, LINE, asyncio.Event(), asyncio.Semaphore())

    assert answering._windows[BATCH.tenant].limit == 2


@pytest.mark.parametrize(
    ("retry_after_ms", "left", "waits"),
    [("5000", 9.0, 5.0), ("60000", 90.0, 30.0), ("5000", 2.0, 2.0)],
)
async def test_a_line_waits_as_told_within_bounds(
    retry_after_ms: str, left: float, waits: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[float]()

    async def pause(halt: asyncio.Event, seconds: float) -> None:
        waited.append(seconds)
        halt.set()

    monkeypatch.setattr("sluicegate.gateway.batches.answering.pause", pause)
    script = Script(503, retry_after_ms=retry_after_ms)

    answering = answerer(script, now=BATCH.expires - left)
    await answering.answer(BATCH, LINE, asyncio.Event(), asyncio.Semaphore())

    assert waited == [waits]


@pytest.mark.parametrize(("status", "times"), [(404, 1), (422, 1), (500, 3)])
async def test_what_stays_is_an_error(status: int, times: int) -> None:
    script = Script(status)

    result = await answerer(script).answer(BATCH, LINE, asyncio.Event(), asyncio.Semaphore())

    assert (status_of(result), len(script.asked)) == (status, times)
    assert result is not None
    assert not result.is_success


@pytest.mark.parametrize(("code", "times"), [("upstream_failed", 4), ("task_not_supported", 1)])
async def test_tei_s_status_of_a_failed_backend_may_pass(code: str, times: int) -> None:
    script = Script(424, body=b'{"error":"e","code":"%b"}' % code.encode())

    result = await answerer(script).answer(BATCH, LINE, asyncio.Event(), asyncio.Semaphore())

    assert (status_of(result), len(script.asked)) == (424, times)


class PartialAnswers(Script):
    """Answers 200 without items that failed with such statuses, then as a whole."""

    def __init__(self, *passing: set[int]) -> None:
        super().__init__(200)
        self.passing = [*map(frozenset, passing)]
        self.no_room_for = 0
        """How many of the first events find no room in the log."""
        self.published: list[Reply] = []

    @override
    async def ask(
        self, batch: RequestBatch, request_id: str, body: bytes, *, late: int, left: float
    ) -> Reply:
        reply = await super().ask(batch, request_id, body, late=late, left=left)
        passing = self.passing.pop(0) if self.passing else frozenset[int]()

        def publish() -> bool:
            self.published.append(reply)
            return len(self.published) > self.no_room_for

        return msgspec.structs.replace(reply, passing=passing, publish=publish)


@pytest.mark.parametrize(
    ("passing", "times"),
    [
        ([{504}] * 12, 13),
        ([{503, 502}, {504, 500}], 3),
        ([{429, 502}] * 9, 10),
        ([{502}] * 9, 4),
        ([{404}], 1),
    ],
    ids=["late", "several kinds", "busy and failed", "failed", "not to be mended"],
)
async def test_an_answer_without_some_items_is_asked_again_and_published_once(
    passing: list[set[int]], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.gateway.batches.answering._LONGEST_WAIT", 0.001)
    script = PartialAnswers(*passing)

    result = await answerer(script).answer(BATCH, LINE, asyncio.Event(), asyncio.Semaphore())

    assert (status_of(result), len(script.asked), len(script.published)) == (200, times, 1)
    assert script.late == [len([0 for each in passing[:n] if 504 in each]) for n in range(times)]


async def test_an_answer_whose_event_finds_no_room_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluicegate.gateway.batches.answering._LONGEST_WAIT", 0.001)
    script = PartialAnswers({404}, {404})
    script.no_room_for = 1

    result = await answerer(script).answer(BATCH, LINE, asyncio.Event(), asyncio.Semaphore())

    assert (status_of(result), len(script.asked), len(script.published)) == (200, 2, 2)


@pytest.mark.parametrize(("no_room_for", "is_expired"), [(0, False), (1, True)])
async def test_at_the_window_s_end_a_line_has_the_items_that_were_answered(
    *, no_room_for: int, is_expired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a record of what they cost they are not given."""
    monkeypatch.setattr("sluicegate.gateway.batches.answering._LONGEST_WAIT", 0.001)
    script = PartialAnswers({504})
    script.no_room_for = no_room_for
    answering = answerer(script)
    answering._wall = lambda: float(BATCH.expires if script.asked else 0)

    result = await answering.answer(BATCH, LINE, asyncio.Event(), asyncio.Semaphore())

    assert result is not None
    assert (result.is_expired, result.is_success) == (is_expired, not is_expired)
    assert (len(script.asked), len(script.published)) == (1, 1)


async def test_a_quota_that_is_used_up_is_not_waited_for() -> None:
    script = Script(429, x_should_retry="false")

    assert (
        status_of(await answerer(script).answer(BATCH, LINE, asyncio.Event(), asyncio.Semaphore()))
        == 429
    )


async def test_a_line_without_time_is_not_asked() -> None:
    script = Script(200)

    result = await answerer(script, now=BATCH.expires).answer(
        BATCH, LINE, asyncio.Event(), asyncio.Semaphore()
    )

    assert result is not None
    assert result.is_expired
    assert script.asked == []


async def test_a_halt_ends_the_wait() -> None:
    script, halt = Script(503, retry_after_ms="60000"), asyncio.Event()
    waiting = asyncio.create_task(answerer(script).answer(BATCH, LINE, halt, asyncio.Semaphore()))
    await script.was_asked.wait()

    halt.set()

    assert await waiting is None


async def test_a_line_that_waits_for_a_place_is_not_asked_after_a_halt() -> None:
    class Slow(Script):
        @override
        async def ask(self, *args: Any, **named: Any) -> Reply:
            reply = await super().ask(*args, **named)
            await may_end.wait()
            return reply

    script, halt, may_end = Slow(200), asyncio.Event(), asyncio.Event()
    answering = LineAnswerer(runner=script, most=1, wall=lambda: 0.0)
    answers = [
        asyncio.create_task(answering.answer(BATCH, LINE, halt, asyncio.Semaphore()))
        for _ in range(2)
    ]
    await script.was_asked.wait()

    halt.set()
    may_end.set()
    results = await asyncio.gather(*answers)

    assert [result is not None for result in results] == [True, False]
    assert len(script.asked) == 1


async def test_refusals_halve_the_lines_in_flight_once_a_second() -> None:
    now = [0.0]
    window = CongestionWindow(8, clock=lambda: now[0])

    for refused in (True, True, False):
        await window.enter()
        window.leave(refused=refused)
    once = window.limit
    now[0] = 1.5
    await window.enter()
    window.leave(refused=True)

    assert (once, window.limit) == (4, 2)


async def test_a_window_never_grows_beyond_its_most() -> None:
    window = CongestionWindow(2, clock=lambda: 0.0)

    for _ in range(9):
        await window.enter()
        window.leave(refused=False)

    assert window.limit == 2


async def test_who_leaves_when_its_turn_has_come_lets_the_next_one_in() -> None:
    window = CongestionWindow(1, clock=lambda: 0.0)
    await window.enter()
    second, third = (asyncio.create_task(window.enter()) for _ in range(2))
    await asyncio.sleep(0)

    window.leave(refused=False)
    second.cancel()

    await asyncio.wait_for(third, 60.0)
    assert second.cancelled()


async def test_no_more_lines_are_in_flight_than_the_window_admits() -> None:
    window = CongestionWindow(2, clock=lambda: 0.0)
    for _ in range(2):
        await window.enter()
    third = asyncio.create_task(window.enter())
    fourth = asyncio.create_task(window.enter())
    await asyncio.sleep(0)

    third.cancel()
    window.leave(refused=False)
    await fourth

    assert third.cancelled()
