"""Encodes the outcomes of items as the body and headers of a response.

Results are sent as they were stored; `Cache-Status` names the tier that the cache names.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Final

import msgspec

from sluicegate.gateway.api.schemas import Body, InferBody, RerankBody
from sluicegate.gateway.cache.entry import CachedResult
from sluicegate.gateway.errors import DeadlineExceeded, GatewayError, Overloaded
from sluicegate.gateway.types import (
    Answer,
    CacheDirectives,
    ItemFailure,
    ItemOutcome,
    RevisionUsage,
    Source,
    Stale,
    Usage,
)

HIT = b"cache-status: sluicegate; hit; detail=memory\r\nage: "
"""The header lines of a memory hit, up to its age."""
PRIVATE = b"\r\ncache-control: private, no-store\r\n"
"""The header lines that follow the id of every response."""
_encode = msgspec.json.encode
_stored_result = attrgetter("result")
# Members of an enumeration are looked up by a method, and hashed by another, in Python 3.11.
_HIT, _COLLAPSED, _COMPUTED = Source.HIT, Source.COLLAPSED, Source.COMPUTED
SCORE_DECIMALS = 6
"""Scores of documents are put in order before they are rounded to so many decimals."""
_UNPROCESSABLE = 422
_CANCELLED = "cancelled"
_FIRST_FAULT = 500
_NO_FAULTS = frozenset({_CANCELLED, Overloaded.code, DeadlineExceeded.code})
_NOT_STALE = Stale.NO


class _Score(msgspec.Struct, frozen=True):
    score: float


_decode_score = msgspec.json.Decoder(_Score).decode


def count_usage(outcomes: Sequence[ItemOutcome]) -> Usage:
    """Return counts of the items by source, and the sums of the items' numbers."""
    if len(outcomes) == 1 and outcomes[0].source is _HIT:
        return usage_of_hit(outcomes[0])
    # Written out, as in `usage_of_computed`, because each request runs one of them. A test compares
    # both with the numbers that `Usage` and `ItemOutcome` have in common.
    hit = collapsed = computed = rows = tokens = truncated = 0
    for outcome in outcomes:
        source = outcome.source
        if source is _COMPUTED:
            computed += 1
        elif source is _HIT:
            hit += 1
        elif source is _COLLAPSED:
            collapsed += 1
        rows += outcome.rows
        tokens += outcome.tokens
        truncated += outcome.truncated_from > 0
    items = len(outcomes)
    return Usage(
        items=items,
        hit=hit,
        collapsed=collapsed,
        computed=computed,
        failed=items - hit - collapsed - computed,
        rows=rows,
        tokens=tokens,
        truncated=truncated,
    )


def usage_of_computed(outcomes: Sequence[ItemOutcome]) -> Usage:
    """Return `count_usage` of items that were all computed, and whose texts are whole."""
    rows = tokens = 0
    for outcome in outcomes:
        rows += outcome.rows
        tokens += outcome.tokens
    items = len(outcomes)
    return Usage(
        items=items, hit=0, collapsed=0, computed=items, failed=0, rows=rows, tokens=tokens
    )


def usage_of_hit(hit: ItemOutcome | CachedResult) -> Usage:
    """Return the usage of a request with one item, which was a hit.

    The usage of all hits is `PLAIN_HIT`, except if it depends on the text.
    """
    return _CUT_HIT if hit.truncated_from else PLAIN_HIT


def backend_region(outcomes: Sequence[ItemOutcome]) -> str:
    """Return the region of the backends that answered; several are separated by commas."""
    if len(outcomes) == 1:
        return outcomes[0].region
    found = {outcome.region for outcome in outcomes}
    return found.pop() if len(found) == 1 else ",".join(sorted(filter(None, found)))


def is_refusal(failure: ItemFailure | GatewayError) -> bool:
    """Tell whether it failed for what was sent, for lack of room or time, not by a fault."""
    return failure.status < _FIRST_FAULT or failure.code in _NO_FAULTS


def count_refused(outcomes: Sequence[ItemOutcome]) -> int:
    """Return how many items failed, and by no fault."""
    return sum(outcome.failure is not None and is_refusal(outcome.failure) for outcome in outcomes)


def count_hits(outcomes: Sequence[ItemOutcome]) -> tuple[tuple[str, int], ...]:
    """Return counts of the hits by what metrics call their source."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.source is _HIT:
            source = "stale" if outcome.stale else f"{outcome.tier}_hit"
            counts[source] = counts.get(source, 0) + 1
    return tuple(counts.items())


def count_revisions(outcomes: Sequence[ItemOutcome]) -> tuple[RevisionUsage, ...]:
    """Return counts of the items by the revision that answered; none where no item names one."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for outcome in outcomes:
        if outcome.arm:
            found = counts.setdefault((outcome.arm, outcome.shadow), dict.fromkeys(_COUNTED, 0))
            found[outcome.source] += 1
            found["rows"] += outcome.rows
            found["tokens"] += outcome.tokens
    if not counts:
        return ()
    return tuple(
        RevisionUsage(arm=number, shadow=shadow, **found)
        for (number, shadow), found in counts.items()
    )


_COUNTED = (*(source.value for source in Source), "rows", "tokens")
PLAIN_HIT: Final = Usage.of(hit=1)
_CUT_HIT = Usage.of(hit=1, truncated=1)


@lru_cache
def failed_usage(items: int) -> Usage:
    """Return the usage of a request that failed as a whole: nothing of it is billed."""
    return Usage.of(failed=items)


def first_failure(
    answer: Answer, *, continue_on_error: bool, answers_failures: bool = False
) -> GatewayError | None:
    """Return the error that fails the whole request, `None` when it is answered.

    With `continue_on_error` a request fails only when no backend could be called for any item, and
    not even then if its route `answers_failures`.
    """
    if answers_failures and continue_on_error:
        return None
    failures = [(i, o.failure) for i, o in enumerate(answer.outcomes) if o.failure is not None]
    if not failures:
        return None
    if continue_on_error:
        hopeless = all(failure.status != _UNPROCESSABLE for _, failure in failures)
        if len(failures) < len(answer.outcomes) or not hopeless:
            return None
    # Work that was cancelled because of another failure does not name the cause.
    decisive = (each for each in failures if each[1].code != _CANCELLED)
    index, failure = next(decisive, failures[0])
    return failure.error(index)


def passing_failures(answer: Answer) -> frozenset[int]:
    """Return the statuses of items that failed for another reason than what they are."""
    failures = [outcome.failure for outcome in answer.outcomes if outcome.failure is not None]
    return frozenset(each.status for each in failures if each.status != _UNPROCESSABLE)


def encode_answer(body: Body | None, answer: Answer, usage: Usage) -> bytes:
    """Return the JSON body of an answer."""
    info = answer.model.info
    results: Iterable[bytes]
    if isinstance(body, RerankBody):
        results = _ranked(body, answer.outcomes)
    elif usage.failed or usage.truncated:
        results = [_result(body, outcome) for outcome in answer.outcomes]
    else:
        results = map(_stored_result, answer.outcomes)
    return b'{"model":%b,"revision":%b,"results":[%b],"usage":%b}' % (
        _encode(info.name),
        _encode(info.revision),
        b",".join(results),
        _encode(usage),
    )


def cache_lines(answer: Answer, directives: CacheDirectives) -> bytes:
    """Return `Cache-Status` (RFC 9211) over all items, and `Age` when all were hits, as lines."""
    outcomes = answer.outcomes
    ages = [outcome.age for outcome in outcomes if outcome.tier]
    stale = _stale(outcomes)
    if len(ages) == len(outcomes):
        tiers = {outcome.tier for outcome in outcomes}
        detail = stale or (tiers.pop() if len(tiers) == 1 else "mixed")
        how = b"fwd=stale" if stale is Stale.ON_ERROR else b"hit"
        return b"cache-status: sluicegate; %b; detail=%b\r\nage: %d\r\n" % (
            how,
            detail.encode(),
            int(max(ages)),
        )
    status = b"cache-status: sluicegate; " + _forwarded(answer, directives, is_partial=bool(ages))
    return status + (b"; detail=%b\r\n" % stale.encode() if stale else b"\r\n")


def row_lines(answer: Answer) -> bytes:
    """Return the header line of rows that models ran and rows from the row cache."""
    computed = known = 0
    for outcome in answer.outcomes:
        computed += outcome.rows
        known += outcome.known_rows
    if not computed and not known:
        return b""
    return b"sluicegate-rows: computed=%d, known=%d\r\n" % (computed, known)


def _stale(outcomes: Sequence[ItemOutcome]) -> Stale:
    """Return the kind of last answers among `outcomes`; errors outrank refreshes."""
    kinds = [outcome.stale for outcome in outcomes if outcome.stale]
    if not kinds:
        return _NOT_STALE
    return Stale.ON_ERROR if Stale.ON_ERROR in kinds else Stale.REVALIDATING


def _forwarded(answer: Answer, directives: CacheDirectives, *, is_partial: bool) -> bytes:
    """Return the `fwd` of `Cache-Status`: why items were not hits, and whether they were stored."""
    if not answer.is_cacheable:
        status = b"fwd=bypass"
    elif directives.no_cache:
        status = b"fwd=request"
    elif is_partial:
        status = b"fwd=partial"
    else:
        status = b"fwd=uri-miss"
    sources = [outcome.source for outcome in answer.outcomes]
    if _COMPUTED in sources:
        if answer.is_cacheable and not directives.no_store:
            status += b"; stored"
    elif _COLLAPSED in sources:
        status += b"; collapsed"
    return status


def _result(body: Body | None, outcome: ItemOutcome) -> bytes:
    if outcome.failure is None:
        return _marked(body, outcome.result) if outcome.truncated_from else outcome.result
    return b'{"error":%b}' % _encode(_shown(outcome.failure))


def _marked(body: Body | None, result: bytes) -> bytes:
    """Return a result with `truncated`; one that is no JSON object stays as it is."""
    if not result.endswith(b"}") or (isinstance(body, InferBody) and _OWN_MARK in result):
        return result
    head = result[:-1].rstrip()
    return head + (b"" if head == b"{" else b",") + _MARK + b"}"


# A custom algorithm may use this name for its own field.
_OWN_MARK = b'"truncated"'
_MARK = b'"truncated":true'


def _ranked(body: RerankBody, outcomes: Sequence[ItemOutcome]) -> list[bytes]:
    """Return the documents best first; those without a score go last, whatever `top_n`."""
    scored: list[tuple[float, int]] = []
    cut = {index for index, outcome in enumerate(outcomes) if outcome.truncated_from}
    failed: list[bytes] = []
    for index, outcome in enumerate(outcomes):
        if outcome.failure is None:
            scored.append((-_decode_score(outcome.result).score, index))
        else:
            failed.append(_encode({"index": index, "error": _shown(outcome.failure)}))
    scored.sort()
    entries: list[bytes] = []
    for negative, index in scored[: body.top_n]:
        entry: dict[str, object] = {"index": index, "score": round(-negative, SCORE_DECIMALS)}
        if body.return_documents:
            entry["document"] = body.documents[index]
        if index in cut:
            entry["truncated"] = True
        entries.append(_encode(entry))
    return entries + failed


def _shown(failure: ItemFailure) -> dict[str, str]:
    return {"code": failure.code, "detail": failure.detail}


def timing_line(admission: float, total: float) -> bytes:
    """Return the header line of an answer that says how long it took."""
    steps = {"admission": admission, "inference": total - admission, "total": total}
    value = ", ".join(f"{name};dur={seconds * 1000:.2f}" for name, seconds in steps.items())
    return b"server-timing: %b\r\n" % value.encode()
