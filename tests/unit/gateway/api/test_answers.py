"""What an answer says: results, errors, usage, and how the cache was involved."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from sluicegate.gateway.api.answers import (
    cache_lines,
    count_refused,
    count_usage,
    encode_answer,
    failed_usage,
    first_failure,
    row_lines,
    usage_of_computed,
)
from sluicegate.gateway.api.schemas import ClassifyBody, RerankBody
from sluicegate.gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    InternalError,
    InvalidItem,
    InvalidRequest,
    Overloaded,
    PayloadTooLarge,
    UpstreamFailed,
    UpstreamUnavailable,
)
from sluicegate.gateway.types import (
    Answer,
    CacheDirectives,
    ItemFailure,
    ItemOutcome,
    RegionName,
    ServedModel,
    Source,
    Stale,
    Usage,
)
from tests.support.inference_scene import INFO

_MODEL = ServedModel(info=INFO, regions=(RegionName("eu"),))
_PLAIN = CacheDirectives()


def computed(result: bytes = b'{"labels":[]}', rows: int = 1) -> ItemOutcome:
    return ItemOutcome(source=Source.COMPUTED, result=result, rows=rows, tokens=4)


def hit(tier: str = "memory", age: float = 3.0, stale: Stale = Stale.NO) -> ItemOutcome:
    return ItemOutcome(source=Source.HIT, result=b"{}", tier=tier, age=age, stale=stale)


def collapsed() -> ItemOutcome:
    return ItemOutcome(source=Source.COLLAPSED, result=b"{}")


def failed(status: int = 422, code: str = "empty_input", after: float | None = None) -> ItemOutcome:
    failure = ItemFailure(status=status, code=code, detail="No.", retry_after=after)
    return ItemOutcome(source=Source.FAILED, failure=failure)


def answer(*outcomes: ItemOutcome) -> Answer:
    return Answer(model=_MODEL, outcomes=list(outcomes))


def test_items_refused_for_what_they_are_or_for_lack_of_room_are_counted_apart() -> None:
    outcomes = [
        failed(),
        failed(503, "overloaded"),
        failed(504, "deadline_exceeded"),
        failed(500, "algorithm_failed"),
        failed(503, "upstream_unavailable"),
        computed(),
    ]

    assert count_refused(outcomes) == 3


def test_rows_that_were_known_are_told_beside_those_that_were_not() -> None:
    known = ItemOutcome(source=Source.COMPUTED, result=b"{}", rows=1, known_rows=20)

    lines = row_lines(answer(known, computed(rows=2), hit()))

    assert fields(lines) == {b"sluicegate-rows": b"computed=3, known=20"}


def test_an_answer_without_rows_tells_of_none() -> None:
    assert row_lines(answer(hit(), collapsed(), failed())) == b""


@pytest.mark.parametrize("count", [count_usage, usage_of_computed])
def test_usage_has_the_sum_of_each_number_that_items_have(
    count: Callable[[Sequence[ItemOutcome]], Usage],
) -> None:
    shared = set(Usage.__struct_fields__) & set(ItemOutcome.__struct_fields__)
    numbers = list(enumerate(sorted(shared), 1))
    outcomes = [
        msgspec.convert(
            {"source": "computed"} | {name: each * place for place, name in numbers}, ItemOutcome
        )
        for each in (2, 3)
    ]

    usage = count(outcomes)

    assert (usage.items, usage.computed) == (2, 2)
    for place, name in numbers:
        assert getattr(usage, name) == 5 * place


def test_usage_counts_how_items_ended() -> None:
    usage = count_usage([hit(), collapsed(), computed(rows=2), failed()])

    assert (usage.items, usage.hit, usage.collapsed, usage.computed, usage.failed) == (
        4,
        1,
        1,
        1,
        1,
    )
    assert (usage.rows, usage.tokens) == (2, 4)


def test_a_request_that_fails_as_a_whole_uses_nothing() -> None:
    usage = failed_usage(3)

    assert (usage.items, usage.failed, usage.rows) == (3, 3, 0)


def test_an_answer_is_json_with_stored_results() -> None:
    body = ClassifyBody(model="sentiment", input="x")
    outcomes = answer(computed(b'{"labels":[{"label":"a","score":0.5}]}'), failed())

    found = msgspec.json.decode(encode_answer(body, outcomes, count_usage(outcomes.outcomes)))

    assert found["revision"] == INFO.revision
    assert found["results"][0]["labels"][0]["label"] == "a"
    assert found["results"][1]["error"] == {"code": "empty_input", "detail": "No."}


def rank(*scores: float | None, **fields: object) -> list[dict[str, object]]:
    body = msgspec.convert(
        {"model": "m", "query": "q", "documents": [f"d{i}" for i in range(len(scores))]} | fields,
        RerankBody,
    )
    outcomes = answer(
        *(failed() if score is None else computed(b'{"score":%f}' % score) for score in scores)
    )
    encoded = encode_answer(body, outcomes, failed_usage(0))
    results: list[dict[str, object]] = msgspec.json.decode(encoded)["results"]
    return results


def test_documents_come_best_first_and_equal_ones_in_their_order() -> None:
    assert [entry["index"] for entry in rank(0.1, 0.9, 0.5, 0.9)] == [1, 3, 2, 0]


def test_top_n_keeps_the_best_and_documents_are_returned_when_asked() -> None:
    found = rank(0.1, 0.9, top_n=1, return_documents=True)

    assert found == [{"index": 1, "score": 0.9, "document": "d1"}]


def test_documents_that_failed_come_last() -> None:
    found = rank(None, 0.2)

    assert [entry["index"] for entry in found] == [1, 0]
    assert "error" in found[1]


def fields(lines: bytes) -> dict[bytes, bytes]:
    """Return header lines as a dictionary."""
    pairs = (line.split(b": ", 1) for line in lines.split(b"\r\n")[:-1])
    return dict(pairs)


_OLD = hit(stale=Stale.REVALIDATING)
_STOOD_IN = hit("redis", stale=Stale.ON_ERROR)


@pytest.mark.parametrize(
    ("outcomes", "directives", "expected"),
    [
        ([hit()], _PLAIN, b"sluicegate; hit; detail=memory"),
        ([hit("redis")], _PLAIN, b"sluicegate; hit; detail=redis"),
        ([hit("redis"), hit()], _PLAIN, b"sluicegate; hit; detail=mixed"),
        ([computed()], _PLAIN, b"sluicegate; fwd=uri-miss; stored"),
        ([collapsed()], _PLAIN, b"sluicegate; fwd=uri-miss; collapsed"),
        ([hit(), computed()], _PLAIN, b"sluicegate; fwd=partial; stored"),
        ([computed()], CacheDirectives(no_cache=True), b"sluicegate; fwd=request; stored"),
        ([computed()], CacheDirectives(no_store=True), b"sluicegate; fwd=uri-miss"),
        ([hit(), _OLD], _PLAIN, b"sluicegate; hit; detail=stale"),
        ([_OLD, _STOOD_IN], _PLAIN, b"sluicegate; fwd=stale; detail=stale-if-error"),
        ([_OLD, computed()], _PLAIN, b"sluicegate; fwd=partial; stored; detail=stale"),
        ([_STOOD_IN, failed()], _PLAIN, b"sluicegate; fwd=partial; detail=stale-if-error"),
    ],
)
def test_cache_status_says_what_happened(
    outcomes: list[ItemOutcome], directives: CacheDirectives, expected: bytes
) -> None:
    lines = cache_lines(Answer(model=_MODEL, outcomes=outcomes), directives)

    assert fields(lines)[b"cache-status"] == expected


def test_age_is_that_of_the_oldest_hit() -> None:
    headers = fields(cache_lines(answer(hit(age=3.0), hit(age=9.9)), _PLAIN))

    assert headers[b"age"] == b"9"


def test_answers_that_are_not_kept_do_not_say_they_are_stored() -> None:
    uncached = Answer(model=_MODEL, outcomes=[computed()], is_cacheable=False)

    assert fields(cache_lines(uncached, _PLAIN)) == {b"cache-status": b"sluicegate; fwd=bypass"}


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "bad_call", InvalidRequest),
        (413, "call_too_large", PayloadTooLarge),
        (500, "internal_error", InternalError),
        (500, "backend_error", UpstreamFailed),
        (502, "upstream_failed", UpstreamFailed),
        (503, "cancelled", UpstreamUnavailable),
        (503, "overloaded", Overloaded),
        (504, "deadline_exceeded", DeadlineExceeded),
    ],
)
def test_a_failure_of_an_item_is_an_error_of_its_kind(
    status: int, code: str, kind: type[GatewayError]
) -> None:
    error = first_failure(answer(failed(status, code)), continue_on_error=False)

    assert type(error) is kind
    assert (error.retry_after is not None) == kind.retryable


def test_the_first_failure_fails_the_request() -> None:
    error = first_failure(answer(computed(), failed()), continue_on_error=False)

    assert isinstance(error, InvalidItem)
    assert (error.index, error.item_code) == (1, "empty_input")


def test_a_failure_alone_does_not_fail_a_request_that_goes_on() -> None:
    assert first_failure(answer(computed(), failed()), continue_on_error=True) is None
    assert first_failure(answer(failed()), continue_on_error=True) is None


def test_a_request_that_goes_on_fails_when_no_backend_could_be_asked() -> None:
    outcomes = answer(failed(503, "upstream_unavailable"), failed(503, "upstream_unavailable"))

    error = first_failure(outcomes, continue_on_error=True)

    assert isinstance(error, UpstreamUnavailable)
    assert error.retry_after == 1.0


def test_failures_keep_their_kind_and_when_to_come_back() -> None:
    late = first_failure(answer(failed(504, "deadline_exceeded")), continue_on_error=False)
    busy = first_failure(answer(failed(503, "overloaded", 2.5)), continue_on_error=False)

    assert isinstance(late, DeadlineExceeded)
    assert isinstance(busy, Overloaded)
    assert busy.retry_after == 2.5
