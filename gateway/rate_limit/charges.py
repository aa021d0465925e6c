"""Computes the charges of a request: how many units it takes, and from which buckets.

A changed limit applies from the next request on, because charges use the rules at the moment of the
request. The configuration document has the default limits and the limits of models;
`RuntimeFollower` loads the document. `PrincipalsFollower` loads the limits of tenants and API keys.

A lease belongs to the rule under which it was requested (`Lease.is_under`). If the rule has changed
since then, Redis decides about the request, and changes the bucket's level by as much as the limit
has changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from sluicegate.gateway.rate_limit.base import Charge, RegionalLimits
from sluicegate.gateway.types import CONCURRENT, Principal, Rule

_UNNAMED = ("", "month")
"""The periods that buckets' names leave out."""


@lru_cache(maxsize=16_384)
def charges_for(
    principal: Principal,
    *,
    items: int = 0,
    model: str = "",
    default_tenant_rules: tuple[Rule, ...],
    default_key_rules: tuple[Rule, ...],
) -> tuple[Charge, ...]:
    """Return the charges of a request to the tenant and the API key of `principal`.

    The default rules apply to a tenant or a key without rules. For a rule on rows or tokens, there
    is a charge of 0 units, so that response headers show the state of the rule. This function
    caches its results.
    """
    amounts = {"requests": 1, "items": items, "rows": 0, "tokens": 0}
    rules = _rules(principal, model, default_tenant_rules, default_key_rules)
    return tuple(
        Charge(rule=rule, bucket=bucket, amount=amounts[rule.unit])
        for rule, bucket in rules
        if rule.unit in amounts
    )


class WorkLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the configuration document's rules on computed work.

    `tenant` and `key` apply to tenants and API keys without rules. `model` applies to one model.
    """

    tenant: tuple[Rule, ...] = ()
    key: tuple[Rule, ...] = ()
    model: tuple[Rule, ...] = ()


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Holds upper bounds of the items, rows and tokens of a call to a backend."""

    items: int
    rows: int
    tokens: int


def work_charges_for(
    principal: Principal, limits: WorkLimits, *, model: str, most: Estimate
) -> tuple[tuple[Charge, ...], tuple[Charge, ...]]:
    """Return the charges to reserve before a call to a backend.

    The first tuple holds the charges to the model's limits. The second holds the charges to the
    limits of the tenant and the API key.

    A model's limits apply to all tenants together. They can limit requests and items, too.
    """
    amounts = {"requests": 1, "items": most.items}
    work_amounts = {"rows": most.rows, "tokens": most.tokens, CONCURRENT: 1}
    # A tenant's name is quoted and contains no slash. So this bucket's name belongs to no tenant.
    bucket = f"rl:{{/{quote(model, safe='')}}}:m:"
    of_model = ((rule, bucket + _own_name(rule)) for rule in limits.model)
    of_principal = _rules(principal, model, limits.tenant, limits.key)
    return _reserved(of_model, amounts | work_amounts), _reserved(of_principal, work_amounts)


def in_region(charges: Sequence[Charge], shares: RegionalLimits) -> list[Charge]:
    """Return `charges` with each rule reduced to this region's share of its limit.

    `shares` holds the region's shares.
    """
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
    """Yield each rule that applies to a request for `model`, and its bucket.

    All buckets of a tenant have the hash tag `{tenant}`, so that one script can reach them in a
    Redis cluster. If a tenant and its key have rules with the same name, the key's rule is called
    `key_<name>`, because clients distinguish policies by name.
    """
    tenant_rules = principal.tenant_rules or default_tenant_rules
    # A quoted name can neither end the hash tag nor contain a separator.
    tenant = f"rl:{{{quote(principal.tenant, safe='')}}}"
    key = f"{tenant}:k:{quote(principal.key, safe='')}"
    tenant_names = {rule.name for rule in tenant_rules}
    for rule in tenant_rules:
        if rule.model in ("", model):
            yield rule, f"{tenant}:t:{_own_name(rule)}"
    for rule in principal.key_rules or default_key_rules:
        if rule.model in ("", model):
            is_taken = rule.name in tenant_names
            shown = replace(rule, name=f"key_{rule.name}") if is_taken else rule
            yield shown, f"{key}:{_own_name(rule)}"


def _own_name(rule: Rule) -> str:
    """Return the last part of the bucket's name.

    Quotas of different periods have different buckets, because a bucket keeps its period's end.
    """
    return rule.name if rule.period in _UNNAMED else f"{rule.name}:{rule.period}"


def _reserved(rules: Iterator[tuple[Rule, str]], amounts: Mapping[str, int]) -> tuple[Charge, ...]:
    return tuple(
        Charge(rule=rule, bucket=bucket, amount=amounts[rule.unit], is_reserved=True)
        for rule, bucket in rules
        if rule.unit in amounts
    )
