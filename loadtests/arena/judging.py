"""Judges a case: errors outside their windows, and differences between answers and ledger."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import httpx
import msgspec
from typing_extensions import override

from loadtests.arena.load import RequestOutcome

SETTLED = 10.0
"""Seconds after a fault's end by which everything is well."""
_AGAIN = 3.0


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """States when errors are allowed: seconds after the fault's begin, and after its end.

    A window that is `open` lasts from the beginning to `after_end` seconds after the end.
    """

    after_begin: float = 0.0
    after_end: float = 0.0
    is_open: bool = False

    def holds(self, sent: RequestOutcome, *, begun: float, ended: float) -> bool:
        """Return whether a request was in flight within the window."""
        spans = [(begun, ended + self.after_end)] if self.is_open else []
        if self.after_begin:
            spans.append((begun, begun + self.after_begin))
        if self.after_end:
            spans.append((ended, ended + self.after_end))
        over = sent.due + sent.latency
        return any(sent.due <= end and over >= start for start, end in spans)

    @override
    def __str__(self) -> str:
        if self.is_open:
            return "the fault" + (f" and {self.after_end:g} s" if self.after_end else "")
        parts = [f"{self.after_begin:g} s of its beginning"] if self.after_begin else []
        parts += [f"{self.after_end:g} s of its end"] if self.after_end else []
        return " and ".join(parts) or "never"


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger's record of one request."""

    times: int
    status: int


class LedgerComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Compares the answers of a case with its ledger.

    `unanswered` are requests that the ledger has and whose caller got no answer, `lost` those that
    got none of a gateway's, `shared` answers with an id that another has, too.
    """

    answered: int
    billed: int
    missing: int
    twice: int
    refused_and_billed: int
    unanswered: int
    items_answered: int
    items_billed: int
    lost: int = 0
    shared: int = 0

    def findings(self) -> Iterator[str]:
        """Yield how answers and ledger differ beyond what may be."""
        counted = (
            (self.missing, "answers are not in the ledger"),
            (self.shared, "answers have the id of another"),
            (self.twice, "requests are in the ledger twice"),
            (self.refused_and_billed, "refused requests are billed"),
            # Who got no answer may have been served: that is billed, as the documentation says.
            (max(0, self.unanswered - self.lost), "billed, of which nobody asked"),
        )
        for count, what in counted:
            if count:
                yield f"{count} {what}"
        more = 0 if self.unanswered else self.items_billed - self.items_answered
        if not self.missing and (self.items_billed < self.items_answered or more):
            yield f"{self.items_billed} items billed, {self.items_answered} answered"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a case. `errors_from`, `errors_to`: seconds from the fault's begin."""

    requests: int
    wrong: int
    errors: int
    outside: int
    errors_from: float
    errors_to: float
    codes: dict[str, int]
    seconds: dict[int, int]
    """Errors by the second after the fault's beginning in which they were due."""
    p99_before: float
    p99_during: float
    p99_after: float
    slowest: float


def judge(sent: Sequence[RequestOutcome], window: Window, *, begun: float, ended: float) -> Verdict:
    """Judge the answers of a case; `begun` and `ended` are the times of the fault."""
    failed = [each for each in sent if each.status != httpx.codes.OK]
    outside = [each for each in failed if not window.holds(each, begun=begun, ended=ended)]
    after = ended + SETTLED
    return Verdict(
        requests=len(sent),
        wrong=sum(each.status == httpx.codes.OK and not each.is_right for each in sent),
        errors=len(failed),
        outside=len(outside),
        errors_from=min((each.due for each in failed), default=begun) - begun,
        errors_to=max((each.due for each in failed), default=begun) - begun,
        codes=dict(Counter(map(_said, failed))),
        seconds=dict(Counter(math.floor(each.due - begun) for each in failed)),
        p99_before=_p99(each.latency for each in sent if each.due + each.latency < begun),
        p99_during=_p99(each.latency for each in sent if begun <= each.due < ended),
        p99_after=_p99(each.latency for each in sent if each.due >= after),
        slowest=max((each.latency for each in sent), default=0.0),
    )


def compare(
    sent: Iterable[RequestOutcome], ledger: Mapping[str, LedgerEntry], items_billed: int
) -> LedgerComparison:
    """Compare the answers with the ledger, request by request and in items."""
    sent = list(sent)
    ids = [each.id for each in sent if each.status == httpx.codes.OK]
    answered = set(ids)
    refused = {each.id for each in sent if each.status != httpx.codes.OK and each.id}
    paid = {id_ for id_, each in ledger.items() if each.status == httpx.codes.OK}
    return LedgerComparison(
        answered=len(answered),
        billed=len(paid),
        missing=len(answered - paid),
        twice=sum(each.times > 1 for each in ledger.values()),
        refused_and_billed=len(refused & paid),
        unanswered=len(paid - answered - refused),
        items_answered=sum(each.items for each in sent if each.status == httpx.codes.OK),
        items_billed=items_billed,
        lost=sum(not each.id for each in sent),
        shared=len(ids) - len(answered),
    )


def wait_for_ledger(
    look: Callable[[], LedgerComparison],
    *,
    within: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[LedgerComparison, float]:
    """Compare once a second until no answer is missing, at most `within`, and once more later.

    Later, since what is billed twice is so after it was billed once.

    Returns:
        The last comparison, and the seconds until nothing was missing.
    """
    begun = clock()
    while look().missing and clock() - begun < within:
        pause(1.0)
    waited = clock() - begun
    pause(_AGAIN)
    return look(), waited


class CaseObservations(msgspec.Struct, frozen=True, kw_only=True):
    """Further observations of a case. `memory` and `bounds` are MiB by kind of process."""

    unhealthy: list[str]
    memory: dict[str, float]
    bounds: dict[str, float]


def findings(
    verdict: Verdict, books: LedgerComparison, observations: CaseObservations
) -> Iterator[str]:
    """Yield every violation of what must hold."""
    counted = (
        (verdict.wrong, "wrong answers"),
        (verdict.outside, "errors outside the window"),
    )
    for count, what in counted:
        if count:
            yield f"{count} {what}"
    yield from books.findings()
    if observations.unhealthy:
        yield f"not well {SETTLED:g} s after the end: {', '.join(observations.unhealthy)}"
    unseen = observations.bounds.keys() - observations.memory.keys()
    if unseen:
        yield f"the memory of {', '.join(sorted(unseen))} was not seen"
    for kind, mebibytes in observations.memory.items():
        if mebibytes > observations.bounds[kind]:
            yield f"a process of {kind} had {mebibytes:.0f} MiB"


def _said(sent: RequestOutcome) -> str:
    """Return the status of a failure with its code and detail."""
    return f"{sent.status} {sent.code} {sent.detail}".strip()


def _p99(latencies: Iterable[float]) -> float:
    ordered = sorted(latencies)
    return ordered[int(len(ordered) * 0.99)] if ordered else 0.0
