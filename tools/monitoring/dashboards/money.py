"""Defines the page of money: billable work, what it earns and costs by typed prices, billing.

Metrics have no tenants and no prices. Invoices are exact; these panels estimate.
"""

from tools.monitoring.dashboards.variables import MODEL, OF_MODEL
from tools.monitoring.grafana import Dashboard, Panel, Query, Row, Variable
from tools.monitoring.promql import rate

_PRICES = (
    Variable(name="hit", default="0.0000002", text="Price of a hit"),
    Variable(name="computed", default="0.000001", text="of a computed item"),
    Variable(name="row", default="0.000001", text="of a row"),
    Variable(name="token", default="0.00000002", text="of a token"),
    Variable(name="backend_hour", default="0.10", text="Cost of a backend's hour"),
)
_ITEMS, _HOUR = "sluicegate_items_total", 3600
_FREE = f'{OF_MODEL}, source=~"memory_hit|redis_hit|stale|collapsed"'
_COMPUTED = f'{OF_MODEL}, source="computed"'


def _earned(by: str = "", *, over: str = "5m") -> str:
    """Return what an hour like the last minutes earns."""
    none = f"{rate(_ITEMS, by, OF_MODEL, over)} * 0"
    parts = (
        f"$hit * ({rate(_ITEMS, by, _FREE, over)} or {none})",
        f"$computed * ({rate(_ITEMS, by, _COMPUTED, over)} or {none})",
        f"$row * ({rate('sluicegate_rows_total', by, OF_MODEL, over)} or {none})",
        f"$token * ({rate('sluicegate_tokens_total', by, OF_MODEL, over)} or {none})",
    )
    return f"{_HOUR} * ({' + '.join(parts)})"


_COST = "$backend_hour * count(sluicegate_backend_ready)"
_ESTIMATE = "An estimate by the prices typed above, in their currency; invoices count events."

MONEY = Dashboard(
    uid="money",
    title="Money",
    description="What is billed, what it earns and costs about, and whether billing follows."
    " Exact figures: `sluicegate usage`, `GET /admin/invoices`.",
    variables=(MODEL, *_PRICES),
    rows=(
        Row(
            "Estimates",
            (
                Panel(
                    title="Earned an hour",
                    unit="short",
                    queries=(Query(_earned("model"), "{{model}}"),),
                    stacked=True,
                    description=f"{_ESTIMATE} If it falls while requests do not, more items are"
                    " refused or found in caches.",
                ),
                Panel(
                    title="Earned and cost an hour",
                    unit="short",
                    queries=(Query(_earned(), "earned"), Query(_COST, "backends")),
                    description=f"{_ESTIMATE} Backends that cost more than is earned for days: make"
                    " the pools smaller.",
                ),
                Panel(
                    title="Cost of a million items",
                    unit="short",
                    queries=(
                        Query(
                            f"1e6 * {_COST} / {_HOUR}"
                            f" / ({rate(_ITEMS, where=OF_MODEL, over='5m')} > 0)",
                            "by all items",
                        ),
                        Query(
                            f"1e6 * {_COST} / {_HOUR}"
                            f" / ({rate(_ITEMS, where=_COMPUTED, over='5m')} > 0)",
                            "by computed items",
                        ),
                    ),
                    description="The distance of the two lines is what the cache saves.",
                ),
                Panel(
                    title="Tokens that caches saved",
                    unit="ops",
                    queries=(
                        Query(
                            f"({rate(_ITEMS, where=_FREE, over='5m')} or vector(0))"
                            f" * {rate('sluicegate_tokens_total', where=OF_MODEL, over='5m')}"
                            f" / ({rate(_ITEMS, where=_COMPUTED, over='5m')} > 0)",
                            "tokens a second",
                        ),
                    ),
                    description="Items found times the tokens of a computed one, of the chosen"
                    " models. If it falls, look at the cache page.",
                ),
            ),
        ),
        Row(
            "Usage",
            (
                Panel(
                    title="Billable items",
                    unit="ops",
                    stacked=True,
                    queries=(
                        Query(
                            rate(_ITEMS, "model, source", f'{OF_MODEL}, source!~"failed|refused"'),
                            "{{model}} {{source}}",
                        ),
                    ),
                    description="By model and how they were answered, which the price depends on.",
                ),
                Panel(
                    title="Billable tokens",
                    unit="ops",
                    queries=(
                        Query(rate("sluicegate_tokens_total", "model", OF_MODEL), "{{model}}"),
                    ),
                    description="Tokens that backends computed. By tenant: `sluicegate usage`.",
                ),
                Panel(
                    title="Decisions of limits",
                    unit="reqps",
                    queries=(
                        Query(
                            rate("sluicegate_limit_decisions_total", "policy, decision"),
                            "{{policy}} {{decision}}",
                        ),
                    ),
                    description="`refused` rises: a tenant wants more than it has bought, or its"
                    " client loops. `shadow_refused`: would be refused.",
                ),
                Panel(
                    title="Requests refused by budgets",
                    unit="reqps",
                    queries=(
                        Query(
                            rate("sluicegate_requests_total", "route", 'status="402"'), "{{route}}"
                        ),
                    ),
                    description="Tenants whose month is used up: `sluicegate budgets show` of each"
                    " tenant that `GET /admin/audit` or a webhook names.",
                    may_be_empty=True,
                ),
            ),
        ),
        Row(
            "Billing",
            (
                Panel(
                    title="How far billing is behind",
                    unit="s",
                    queries=(
                        Query("max(sluicegate_shipper_lag_seconds)", "shipper"),
                        Query("max(sluicegate_billing_lag_seconds)", "billing"),
                    ),
                    description="Age of the oldest event that is not in the stream, and of the"
                    " oldest that is not in the ledger. Nothing is lost while it is behind.",
                ),
                Panel(
                    title="Events that wait in the stream",
                    unit="short",
                    queries=(
                        Query("max by (consumer) (sluicegate_stream_lag_events)", "{{consumer}}"),
                    ),
                    description="If it grows, the worker of that name is away or too slow.",
                ),
                Panel(
                    title="Bytes that are not shipped",
                    unit="bytes",
                    queries=(
                        Query(
                            "sum by (instance) (sluicegate_events_unshipped_bytes)", "{{instance}}"
                        ),
                    ),
                    description="On the disk of the gateway machine. If it grows, the shipper or"
                    " the state Redis is away.",
                ),
                Panel(
                    title="Dead letters and dropped events",
                    unit="short",
                    queries=(
                        Query("max by (stream) (sluicegate_dead_letters)", "dead {{stream}}"),
                        Query(
                            "sum by (stream) (increase(sluicegate_events_dropped_total[1h]))",
                            "dropped {{stream}}",
                        ),
                    ),
                    description="Dead letters are events that could not be counted and wait for an"
                    " operator. Dropped are lines of the request log, never billing.",
                    may_be_empty=True,
                ),
            ),
        ),
    ),
)
