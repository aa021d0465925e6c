"""Says what a request is charged, and to which buckets."""

from functools import lru_cache
from urllib.parse import quote

from gateway.rate_limit.base import Charge
from gateway.types import Principal, Rule


@lru_cache(maxsize=16_384)
def charges_for(
    principal: Principal,
    *,
    requests: int,
    items: int,
    default_tenant_rules: tuple[Rule, ...],
    default_key_rules: tuple[Rule, ...],
) -> tuple[Charge, ...]:
    """Return the charges on `principal`'s tenant and key; the defaults are for who has no rules.

    All buckets of a tenant carry the hash tag `{tenant}`, so that one script reaches them in a
    cluster. A key's rule that is named like one of its tenant's is called `key_<name>`, since
    names tell policies apart. Remembered per argument: the rules and the principal keep their
    hashes, so that a hit costs less than building one charge.
    """
    tenant_rules = principal.tenant_rules or default_tenant_rules
    key_rules = principal.key_rules or default_key_rules
    amounts = {"requests": requests, "items": items}
    # Quoted, a name can neither end the hash tag nor look like two parts of a bucket's name.
    tenant = f"rl:{{{quote(principal.tenant, safe='')}}}"
    key = f"{tenant}:k:{quote(principal.key, safe='')}"
    taken = {rule.name for rule in tenant_rules}
    charges = [
        Charge(rule=rule, bucket=f"{tenant}:t:{rule.name}", amount=amounts[rule.unit])
        for rule in tenant_rules
        if rule.unit in amounts
    ]
    charges += [
        Charge(
            rule=_renamed(rule, f"key_{rule.name}") if rule.name in taken else rule,
            bucket=f"{key}:{rule.name}",
            amount=amounts[rule.unit],
        )
        for rule in key_rules
        if rule.unit in amounts
    ]
    return tuple(charges)


def _renamed(rule: Rule, name: str) -> Rule:
    return Rule(name=name, unit=rule.unit, capacity=rule.capacity, window=rule.window)
