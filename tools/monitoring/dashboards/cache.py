"""Defines the page of the result cache: hits, sizes, evictions and its Redis."""

from tools.monitoring.dashboards.variables import MODEL, OF_MODEL
from tools.monitoring.grafana import Dashboard, Panel, Query, Row
from tools.monitoring.promql import quantile, rate, ratio

_LOOKUPS = "sluicegate_cache_lookups_total"
_REDIS = '{dependency="cache_redis"}'

CACHE = Dashboard(
    uid="cache",
    title="Cache",
    description="How many answers come from the cache, and what keeps others from it.",
    variables=(MODEL,),
    rows=(
        Row(
            "Hits",
            (
                Panel(
                    title="Share of look-ups that hit, by tier",
                    unit="percentunit",
                    queries=(
                        Query(
                            ratio(rate(_LOOKUPS, "tier", 'result="hit"'), rate(_LOOKUPS, "tier")),
                            "{{tier}}",
                        ),
                    ),
                    description="Redis falls alone: it was emptied or is too small. Memory falls"
                    " alone: more distinct items than a worker holds.",
                ),
                Panel(
                    title="Items by source",
                    unit="ops",
                    stacked=True,
                    queries=(
                        Query(rate("sluicegate_items_total", "source", OF_MODEL), "{{source}}"),
                    ),
                    description="`collapsed` joined equal work that was under way; `stale` are last"
                    " answers of models that opted in.",
                ),
                Panel(
                    title="Look-ups that failed",
                    unit="ops",
                    queries=(Query(rate(_LOOKUPS, "tier", 'result="error"'), "{{tier}}"),),
                    description="Each is a miss, so answers stay right and backends work more: look"
                    " at the cache's Redis.",
                    may_be_empty=True,
                ),
                Panel(
                    title="Time in look-ups and behind them, 95th percentile",
                    unit="s",
                    queries=(
                        Query(
                            quantile(0.95, "sluicegate_phase_duration_seconds", "phase"),
                            "{{phase}}",
                        ),
                    ),
                    description="`cache` near `cache.redis_timeout`: Redis is slow. `wait`: for"
                    " work that another request began. `dispatch`: for backends.",
                ),
            ),
        ),
        Row(
            "Size",
            (
                Panel(
                    title="Entries",
                    unit="short",
                    queries=(Query("sum by (tier) (sluicegate_cache_entries)", "{{tier}}"),),
                    description="If it falls at once, a cache was restarted or purged"
                    " (`GET /admin/audit`).",
                ),
                Panel(
                    title="Bytes",
                    unit="bytes",
                    queries=(Query("sum by (tier) (sluicegate_cache_bytes)", "{{tier}}"),),
                    description="At its bound entries are evicted: raise `cache.memory_bytes`, or"
                    " `maxmemory` of the cache's Redis, where that pays.",
                ),
                Panel(
                    title="Evictions",
                    unit="ops",
                    queries=(Query(rate("sluicegate_cache_evictions_total", "tier"), "{{tier}}"),),
                    description="Many, with a falling share of hits: the tier is too small.",
                    may_be_empty=True,
                ),
                Panel(
                    title="Redis of the cache",
                    unit="none",
                    queries=(
                        Query(
                            f"min by (instance) (sluicegate_dependency_up{_REDIS})",
                            "{{instance}} reaches it",
                        ),
                        Query(
                            f"max by (instance) (sluicegate_breaker_open{_REDIS})",
                            "{{instance}} breaker is open",
                        ),
                    ),
                    description="While a breaker is open, look-ups in Redis are skipped and are"
                    " misses.",
                ),
            ),
        ),
    ),
)
