"""Computes the charges of a request, and the buckets that they are taken from.

A changed limit applies from the next request on. `RuntimeFollower` brings a worker the document,
which has the limits of models and the defaults, and has `PrincipalsFollower` read those of tenants
and keys. Charges have the rules of that moment. The limiter spends no lease that was requested
under another rule (`Lease.is_under`): Redis decides, and moves the bucket's level by the change.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from gateway.rate_limit.base import Charge, RegionalLimits
from gateway.types import CONCURRENT, Principal, Rule


@lru_cache(maxsize=16_384)
def charges_for(
    principal: Principal,
    *,
    requests: int,
    items: int,
    model: str = "",
    default_tenant_rules: tuple[Rule, ...],
    default_key_rules: tuple[Rule, ...],
) -> tuple[Charge, ...]:
    """Return the charges on `principal`'s tenant and key; defaults apply to those without rules.

    Rules on rows and tokens are charged 0, so that answers show their state. Results are cached:
    rules and principals cache their hashes, so a lookup costs less than building one charge.
    """
    amounts = {"requests": requests, "items": items, "rows": 0, "tokens": 0}
    rules = _rules(principal, model, default_tenant_rules, default_key_rules)
    return tuple(
        Charge(rule=rule, bucket=bucket, amount=amounts[rule.unit])
        for rule, bucket in rules
        if rule.unit in amounts
    )


class WorkLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the rules of the document that apply to work."""

    tenant: tuple[Rule, ...] = ()
    key: tuple[Rule, ...] = ()
    model: tuple[Rule, ...] = ()


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds the items, rows and tokens of work from above."""

    items: int
    rows: int
    tokens: int


def work_charges_for(
    principal: Principal, limits: WorkLimits, *, model: str, most: Estimate
) -> tuple[tuple[Charge, ...], tuple[Charge, ...]]:
    """Return the charges to hold for work about to begin: on the model, on the tenant and key.

    A model's own limits are over all tenants, and charge requests and items too.
    """
    amounts = {"requests": 1, "items": most.items}
    work_amounts = {"rows": most.rows, "tokens": most.tokens, CONCURRENT: 1}
    # Quoted tenants hold no slash, so no tenant has a bucket of this name.
    bucket = f"rl:{{/{quote(model, safe='')}}}:m:"
    of_model = ((rule, bucket + rule.name) for rule in limits.model)
    of_principal = _rules(principal, model, limits.tenant, limits.key)
    return _held(of_model, amounts | work_amounts), _held(of_principal, work_amounts)


def in_region(charges: Sequence[Charge], shares: RegionalLimits) -> list[Charge]:
    """Return `charges` with their rules replaced by this region's parts, as `shares` say."""
    rules = [shares.rule(charge.bucket, charge.rule) for charge in charges]
    return [
        charge if rule is charge.rule else replace(charge, rule=rule)
        for charge, rule in zip(charges, rules, strict=True)
    ]


def _rules(
    principal: Principal,
    model: str,
    default_tenant_rules: tuple[Rule, ...],
    default_key_rules: tuple[Rule, ...],
) -> Iterator[tuple[Rule, str]]:
    """Yield the rules that apply to a request for `model`, and their buckets.

    All buckets of a tenant carry the hash tag `{tenant}`, so that one script reaches them in a
    cluster. A key's rule that is named like one of its tenant's is called `key_<name>`, since
    names tell policies apart.
    """
    tenant_rules = principal.tenant_rules or default_tenant_rules
    # A quoted name can neither end the hash tag nor contain a separator.
    tenant = f"rl:{{{quote(principal.tenant, safe='')}}}"
    key = f"{tenant}:k:{quote(principal.key, safe='')}"
    tenant_names = {rule.name for rule in tenant_rules}
    for rule in tenant_rules:
        if rule.model in ("", model):
            yield rule, f"{tenant}:t:{rule.name}"
    for rule in principal.key_rules or default_key_rules:
        if rule.model in ("", model):
            is_taken = rule.name in tenant_names
            yield replace(rule, name=f"key_{rule.name}") if is_taken else rule, f"{key}:{rule.name}"


def _held(rules: Iterator[tuple[Rule, str]], amounts: Mapping[str, int]) -> tuple[Charge, ...]:
    return tuple(
        Charge(rule=rule, bucket=bucket, amount=amounts[rule.unit], hold=True)
        for rule, bucket in rules
        if rule.unit in amounts
    )
