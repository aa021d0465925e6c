"""Judges a fault: pure functions turn requests, ledger rows and times into findings.

A finding is a sentence about an invariant that did not hold.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any  # figures are numbers, texts and small tables

import msgspec
from typing_extensions import override

SETTLED = 10.0
"""Every part must work again within this many seconds after a fault's end."""
LIMITED = "limited-"
"""The id of a tenant begins with this text if its limit may refuse requests with 429."""
_OK, _REFUSED = 200, 429
_NOT_BILLED = frozenset({401, 409})
_TOLD = frozenset({503, 504})
"""Statuses that a request with a very short deadline may get at any time."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A request and its answer. Times are readings of `time.monotonic`.

    `due` is when the request should have left, and `latency` is measured from `due`. Status 0 means
    no answer. If the answer belongs to another tenant's request, `answer_of` is that tenant.
    """

    due: float
    latency: float
    status: int
    tenant: str
    path: str = ""
    items: int = 1
    is_right: bool = False
    answer_of: str = ""
    id: str = ""
    code: str = ""
    allowed: frozenset[int] = frozenset({_OK})
    """Statuses that are correct for this request."""
    has_left: bool = False
    """The caller disconnected before the answer came."""
    is_hasty: bool = False
    """The request's deadline is so short that 503 and 504 are allowed at any time."""
    is_repeat: bool = False
    """An equal request was answered before, so a cache may answer this request."""

    @property
    def came(self) -> float:
        """When the answer came."""
        return self.due + self.latency

    @property
    def has_failed(self) -> bool:
        """Whether the caller got neither a result nor a refusal that this load provokes."""
        is_limited = self.status == _REFUSED and self.tenant.startswith(LIMITED)
        is_told = self.status in _TOLD and self.is_hasty
        return not (self.status in self.allowed or is_limited or is_told or self.has_left)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """States when errors are allowed: during the first `after_begin` seconds of a fault.

    If `is_open`, errors are allowed from the begin of the fault until `after_end` seconds after its
    end.
    """

    after_begin: float = 0.0
    after_end: float = 0.0
    is_open: bool = False
    path: str = ""
    """The only route on which errors are allowed; if empty, they are allowed on all routes."""

    def allows(self, sent: Sent, *, begun: float, ended: float) -> bool:
        """Return whether a request was in flight within the window."""
        if self == NEVER or self.path not in ("", sent.path):
            return False
        end = ended + self.after_end if self.is_open else begun + self.after_begin
        return sent.due <= end and sent.came >= begun

    @override
    def __str__(self) -> str:
        if self == NEVER:
            return "never"
        text = f"{self.after_begin:g} s after its begin"
        if self.is_open:
            text = "the fault" + (f" and {self.after_end:g} s" if self.after_end else "")
        return f"{text} on {self.path}" if self.path else text


NEVER = Window()


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request in the ledger.

    A row that stands for several requests becomes several `LedgerRow`s.
    """

    id: str
    status: int
    tenant: str
    items: float
    """Items that were answered. If one ledger row stands for several requests, this is the
    average."""
    run: str = ""
    """The id of the first request among those for which the ledger row stands."""


def wrong_answers(sent: Sequence[Sent]) -> Iterator[str]:
    """Yield how many answers are wrong, and how many of these belong to another tenant."""
    wrong = [each for each in sent if each.status == _OK and not each.is_right]
    foreign = sum(bool(each.answer_of) for each in wrong)
    if wrong:
        yield f"{len(wrong)} wrong answers"
    if foreign:
        yield f"{foreign} answers belong to another tenant"


def errors_outside(
    sent: Sequence[Sent], window: Window, *, begun: float, ended: float
) -> Iterator[str]:
    """Yield one finding if requests failed outside the window.

    The finding says how many requests failed, when the first one failed, and with which error
    codes.
    """
    failed = [each for each in sent if each.has_failed]
    outside = [each for each in failed if not window.allows(each, begun=begun, ended=ended)]
    if outside:
        first = min(each.due for each in outside) - begun
        codes = dict(Counter(each.code or str(each.status) for each in outside))
        yield f"{len(outside)} errors outside the window, the first at {first:.1f} s: {codes}"


def unbilled(sent: Sequence[Sent], ledger: Sequence[LedgerRow]) -> int:
    """Return how many answers are missing in the ledger, or have another status in the ledger."""
    return (_answered(sent) - Counter((row.id, row.status) for row in ledger)).total()


def billing(sent: Sequence[Sent], ledger: Sequence[LedgerRow]) -> Iterator[str]:
    """Yield how ledger and answers differ: each answer must be billed once, to its tenant.

    A request without an answer may have been served, and then it is billed.
    """
    rows = defaultdict[str, list[LedgerRow]](list)
    for row in ledger:
        rows[row.id].append(row)
    mine = {each.id: each for each in sent if each.status == _OK and each.id}
    refused = {each.id for each in sent if each.status != _OK and each.id}
    lost = sum(not each.id for each in sent)
    paid = {row.id for row in ledger if row.status == _OK}
    counted = (
        (unbilled(sent, ledger), "answers are not in the ledger"),
        (_answered(sent).total() - len(_answered(sent)), "answers have the id of another"),
        (sum(len(each) > 1 for each in rows.values()), "requests are in the ledger twice"),
        (len((refused & paid) - mine.keys()), "refused requests are billed"),
        (max(0, len(paid - mine.keys() - refused) - lost), "billed, of which nobody asked"),
        (
            sum(row.tenant != mine[row.id].tenant for row in ledger if row.id in mine),
            "billed to another tenant",
        ),
        (_billed_otherwise(mine, rows), "billed with another number of items"),
    )
    yield from (f"{count} {what}" for count, what in counted if count)


def _billed_otherwise(mine: Mapping[str, Sent], rows: Mapping[str, Sequence[LedgerRow]]) -> int:
    """Count ledger rows with a wrong number of items; skip rows with an unanswered request."""
    runs = defaultdict[str, list[LedgerRow]](list)
    for found in rows.values():
        if len(found) == 1:
            runs[found[0].run or found[0].id].append(found[0])
    return sum(
        round(sum(row.items for row in run)) != sum(mine[row.id].items for row in run)
        for run in runs.values()
        if all(row.id in mine for row in run)
    )


def recovery(unwell: Sequence[str], *, waited: float) -> Iterator[str]:
    """Yield the parts of the system that took too long to work again."""
    if unwell:
        yield f"not well {waited:.0f} s after the fault's end: {', '.join(unwell)}"


def figures(sent: Sequence[Sent], window: Window, *, begun: float, ended: float) -> dict[str, Any]:
    """Return the figures of a case, times in seconds.

    `errors_from` and `errors_to` are seconds since the begin of the fault.
    """
    failed = [each for each in sent if each.has_failed]
    since = [each.due - begun for each in failed] or [0.0]
    calm = [each for each in sent if not each.is_hasty]
    before, during, after = (round(p99, 4) for p99 in p99s(calm, begun=begun, ended=ended))
    return {
        "requests": len(sent),
        "wrong": sum(each.status == _OK and not each.is_right for each in sent),
        "errors": len(failed),
        "allowed": str(window),
        "errors_from": round(min(since), 1),
        "errors_to": round(max(since), 1),
        "codes": dict(Counter(each.code or str(each.status) for each in failed)),
        "p99_before": before,
        "p99_during": during,
        "p99_after": after,
        "slowest": round(percentile(sent, 1.0), 3),
        "fault_seconds": round(ended - begun, 1),
    }


def p99s(sent: Sequence[Sent], *, begun: float, ended: float) -> tuple[float, float, float]:
    """Return the 99th percentile of the latencies before, during and after a fault."""
    before = [each for each in sent if each.came < begun]
    during = [each for each in sent if begun <= each.due < ended]
    after = [each for each in sent if each.due >= ended]
    return percentile(before, 0.99), percentile(during, 0.99), percentile(after, 0.99)


def percentile(sent: Sequence[Sent], share: float) -> float:
    """Return the latency that a share of the requests did not exceed; 0 without requests."""
    found = sorted(each.latency for each in sent)
    return found[min(len(found) - 1, int(share * len(found)))] if found else 0.0


def _answered(sent: Sequence[Sent]) -> Counter[tuple[str, int]]:
    """Return the answers that the ledger must have.

    Requests that a load balancer answers itself are not in the ledger. Nobody is billed for a
    request with an unknown key (401).
    """
    return Counter(
        (each.id, each.status)
        for each in sent
        if (each.status in {_OK, _REFUSED} or each.status in each.allowed - _NOT_BILLED)
        and not each.has_left
    )
