"""Reserves units of limits before a call to a backend, and charges the used units after the call.

The rows and tokens of a call are not known in advance, so an upper bound is reserved. The bound on
the tokens of a row is the number of bytes of its text, plus two. If the model reads fewer tokens of
a row, the bound is that number. Cache hits reserve nothing. Items that share the computation of an
equal item reserve nothing, either.
"""

from collections.abc import Sequence

import msgspec

from sluicegate.gateway.errors import MAX_RETRY_AFTER, PayloadTooLarge, RateLimited
from sluicegate.gateway.rate_limit.base import Charge, Decision, RateLimiter, UnitReservation
from sluicegate.gateway.rate_limit.charges import Estimate, WorkLimits, work_charges_for
from sluicegate.gateway.types import CONCURRENT, ItemFailure, Principal
from sluicegate.wire.protocol import ITEMS, PARAMETERS, TASKS, TOKEN_TASKS, RowLimits, Task

_SPECIAL_TOKENS = 2
_MAX_TOKENS = 1 << 20  # the longest row, if the model declares no maximum
_parameters = {task: msgspec.msgpack.Decoder(kind) for task, kind in PARAMETERS.items()}
_items = {task: msgspec.msgpack.Decoder(kind) for task, kind in ITEMS.items()}


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the reserved units of a call, or the reason why the call must not begin (`refusal`)."""

    refusal: ItemFailure | None = None
    charges: tuple[Charge, ...] = ()
    reservations: tuple[UnitReservation, ...] = ()
    items: int = 0

    def settle(self, *, rows: int, tokens: int) -> None:
        """Charge the computed `rows` and `tokens`; give the other reserved units back."""
        spent = {"requests": 1, "items": self.items, "rows": rows, "tokens": tokens, CONCURRENT: 0}
        for charge, reservation in zip(self.charges, self.reservations, strict=True):
            reservation.settle(spent[charge.rule.unit])


async def reserve(
    limiter: RateLimiter, limits: WorkLimits, principal: Principal, *, model: str, most: Estimate
) -> Reservation:
    """Reserve the units of a call to `model`; `most` holds their upper bounds.

    Units of the model's limits are reserved first, then units of the tenant's and the key's limits.
    If a limit of the tenant or the key refuses, the units of the model's limits are given back.
    """
    reservations: tuple[UnitReservation, ...] = ()
    both = work_charges_for(principal, limits, model=model, most=most)
    for charges in filter(None, both):
        try:
            decision = await limiter.admit(charges)
        except BaseException:  # even after a cancellation, reserved units must be given back
            for reservation in reservations:
                reservation.settle(0)
            raise
        if not decision.allowed:
            for reservation in reservations:
                reservation.settle(0)
            return Reservation(refusal=_refusal(decision))
        reservations += decision.reservations
    return Reservation(charges=both[0] + both[1], reservations=reservations, items=most.items)


def estimate(
    task: Task, parameters: bytes, items: Sequence[bytes], *, limits: RowLimits
) -> Estimate:
    """Return upper bounds of the items, rows and tokens that a call with `items` can use.

    The bounds assume that a row contains one item and the request's parameters. `limits` are
    those of a row of the model; 0 tokens mean that they are unknown.
    """
    parameter_bytes = len(parameters) if TASKS[task].repeats_parameters else 0
    limits = limits if limits.tokens else RowLimits(_MAX_TOKENS)
    rows = _rows(task, parameters, items, limits)
    tokens = sum(
        number * min(len(item) + parameter_bytes + _SPECIAL_TOKENS, limits.tokens)
        for item, number in zip(items, rows, strict=True)
    )
    return Estimate(items=len(items), rows=sum(rows), tokens=tokens)


def _rows(task: Task, parameters: bytes, items: Sequence[bytes], limits: RowLimits) -> list[int]:
    count = TASKS[task].rows
    if count is None:
        return [0 if task in TOKEN_TASKS else 1] * len(items)
    given, decode = _parameters[task].decode(parameters), _items[task].decode
    return [count(decode(item), given, limits) for item in items]


def _refusal(decision: Decision) -> ItemFailure:
    rule = decision.violated
    if rule is None:
        raise ValueError("a refused decision has no violated rule")
    if decision.impossible:
        detail = (
            f"The limit `{rule.name}` never allows more than {rule.limit} {rule.unit} at once, and"
            " this request may need more; send fewer or shorter items in one request."
        )
        return ItemFailure.of(PayloadTooLarge(detail))
    detail = (
        f"The limit `{rule.name}` of {rule.unit} is used up; retry after the time in `Retry-After`."
    )
    retry_after = min(decision.retry_after, MAX_RETRY_AFTER)
    return ItemFailure.of(RateLimited(detail, retry_after=retry_after))
