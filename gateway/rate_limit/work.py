"""Limits on work: what must be computed is reserved before it starts, and settled when it ended.

Rows and tokens are not known before, so their upper bound is held: a row has at most as many tokens
as bytes and two more, and at most what the model reads. A request that is answered from the cache,
or by joining others, costs nothing here.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from backends.protocol import ChooseItem, Task, ZeroShotParameters
from gateway.errors import MAX_RETRY_AFTER, PayloadTooLarge, RateLimited
from gateway.rate_limit.base import Charge, Decision, Hold
from gateway.rate_limit.charges import model_charges_for, work_charges_for
from gateway.types import CONCURRENT, ItemFailure, Principal, Rule

_SPECIAL_TOKENS = 2
_MOST = 1 << 20  # tokens a row: where a model names no maximum
_zero_shot = msgspec.msgpack.Decoder(ZeroShotParameters)
_choose = msgspec.msgpack.Decoder(ChooseItem)


class Limiter(Protocol):
    """Decides whether work is within limits; see `gateway.rate_limit.base`."""

    async def admit(self, charges: Sequence[Charge]) -> Decision:
        """Decide, asking the shared state when needed."""
        ...


class WorkLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of the document that work may meet."""

    tenant: tuple[Rule, ...] = ()
    key: tuple[Rule, ...] = ()
    model: tuple[Rule, ...] = ()


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Whether work may begin (then `refusal` is `None`), and what is held for it."""

    refusal: ItemFailure | None = None
    charges: tuple[Charge, ...] = ()
    holds: tuple[Hold, ...] = ()
    items: int = 0

    def settle(self, *, rows: int, tokens: int) -> None:
        """Note what the work took; the rest goes back."""
        spent = {"requests": 1, "items": self.items, "rows": rows, "tokens": tokens, CONCURRENT: 0}
        for charge, hold in zip(self.charges, self.holds, strict=True):
            hold.settle(spent[charge.rule.unit])


_FREE = Reservation()


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What work may take at most."""

    items: int
    rows: int
    tokens: int


async def reserve(
    limiter: Limiter, rules: WorkLimits, principal: Principal, *, model: str, most: Estimate
) -> Reservation:
    """Hold what work for `model` may take.

    First of the model's own limits, then of the tenant's and the key's: if these refuse, what was
    held of the model's goes back.
    """
    shared = model_charges_for(
        rules.model, model=model, items=most.items, rows=most.rows, tokens=most.tokens
    )
    own = work_charges_for(
        principal,
        rows=most.rows,
        tokens=most.tokens,
        model=model,
        default_tenant_rules=rules.tenant,
        default_key_rules=rules.key,
    )
    held: tuple[Hold, ...] = ()
    for charges in filter(None, (shared, own)):
        try:
            decision = await limiter.admit(charges)
        except BaseException:  # also of a caller who left: what was held must go back
            for hold in held:
                hold.settle(0)
            raise
        if not decision.allowed:
            for hold in held:
                hold.settle(0)
            return Reservation(refusal=_refusal(decision))
        held += decision.holds
    return Reservation(charges=shared + own, holds=held, items=most.items) if held else _FREE


def estimate(
    task: Task, parameters: bytes, items: Sequence[bytes], *, longest_row: int
) -> Estimate:
    """Return the most that `items` can take, of a model that reads `longest_row` tokens of a row.

    A row is at most all that an item says, and what all items share.
    """
    shared = len(parameters) if task in (Task.ZERO_SHOT, Task.RERANK) else 0
    rows = [_rows(task, parameters, item) for item in items]
    tokens = sum(
        number * min(len(item) + shared + _SPECIAL_TOKENS, longest_row or _MOST)
        for item, number in zip(items, rows, strict=True)
    )
    return Estimate(items=len(items), rows=sum(rows), tokens=tokens)


def _rows(task: Task, parameters: bytes, item: bytes) -> int:
    if task is Task.ZERO_SHOT:
        return len(_zero_shot.decode(parameters).labels)
    if task is Task.CHOOSE:
        return len(_choose.decode(item).choices)
    return 1


def _refusal(decision: Decision) -> ItemFailure:
    rule = decision.violated
    if rule is None:
        raise ValueError("a refused decision says which rule refused")
    if decision.impossible:
        detail = (
            f"The limit `{rule.name}` never allows more than {rule.limit} {rule.unit} at once, and"
            " the request may take more; send less in one request."
        )
        return ItemFailure.of(PayloadTooLarge(detail))
    detail = f"The limit `{rule.name}` of {rule.unit} is used up; wait as `Retry-After` says."
    retry_after = min(decision.retry_after, MAX_RETRY_AFTER)
    return ItemFailure.of(RateLimited(detail, retry_after=retry_after))
