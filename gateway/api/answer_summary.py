"""Sums an answer up: what its items were, for usage event and metrics, and its header lines."""

from gateway.api.answers import (
    cache_lines,
    count_hits,
    count_refused,
    count_revisions,
    count_usage,
    first_failure,
    passing_failures,
    row_lines,
)
from gateway.api.request_state import RequestState
from gateway.types import Answer, Source, Usage

# A member of an enumeration is looked up by a method in Python 3.11.
_COMPUTED = Source.COMPUTED
_STORED = b"cache-status: sluicegate; fwd=uri-miss; stored\r\n"
_STORED_ROWS = _STORED + b"sluicegate-rows: computed=%d, known=%d\r\n"


def sum_up(state: RequestState, answer: Answer, *, continue_on_error: bool) -> bytes:
    """Note in `state` what the items of its answer were; return the lines that say so.

    Raises:
        GatewayError: the request fails as a whole.
    """
    rows = tokens = known = 0
    for outcome in answer.outcomes:
        if outcome.source is not _COMPUTED or outcome.truncated_from or outcome.arm:
            return _sum_up_mixed(state, answer, continue_on_error=continue_on_error)
        rows += outcome.rows
        tokens += outcome.tokens
        known += outcome.known_rows
    count = len(answer.outcomes)
    state.usage = Usage(
        items=count, hit=0, collapsed=0, computed=count, failed=0, rows=rows, tokens=tokens
    )
    directives = state.options.directives
    if not answer.is_cacheable or directives.no_cache or directives.no_store:
        return cache_lines(answer, directives) + row_lines(answer)
    return _STORED_ROWS % (rows, known) if rows or known else _STORED


def _sum_up_mixed(state: RequestState, answer: Answer, *, continue_on_error: bool) -> bytes:
    outcomes = answer.outcomes
    failure = first_failure(answer, continue_on_error=continue_on_error)
    if failure is not None:
        state.arms = count_revisions([one for one in outcomes if one.failure is not None])
        raise failure
    state.usage = count_usage(outcomes)
    state.arms = count_revisions(outcomes)
    if state.usage.hit:
        state.hit_sources = count_hits(outcomes)
    if state.usage.failed:
        state.fail_some(count_refused(outcomes), passing_failures(answer))
    return cache_lines(answer, state.options.directives) + row_lines(answer)
