"""Defines the page of models: traffic, latency, revisions and work of each."""

from tools.monitoring.dashboards.variables import MODEL, OF_MODEL
from tools.monitoring.grafana import Dashboard, Panel, Query, Row
from tools.monitoring.promql import quantile, rate, ratio

_REQUESTS = "sluicegate_request_duration_seconds_count"
_BAD = f'{OF_MODEL}, outcome=~"server_error|overloaded|deadline"'
_ITEMS = "sluicegate_items_total"
_LOST = "sluicegate_backend_lost_algorithm_hosts_total"

MODEL_PAGE = Dashboard(
    uid="model",
    title="Models",
    description="What each model and each of its revisions does.",
    variables=(MODEL,),
    rows=(
        Row(
            "Requests of a model",
            (
                Panel(
                    title="Requests",
                    unit="reqps",
                    queries=(Query(rate(_REQUESTS, "model", OF_MODEL), "{{model}}"),),
                    description="A model that rises alone is one caller or one job: find it by"
                    " `GET /admin/usage?group_by=tenant`.",
                ),
                Panel(
                    title="Share of requests that failed",
                    unit="percentunit",
                    queries=(
                        Query(
                            ratio(
                                rate(_REQUESTS, "model", _BAD), rate(_REQUESTS, "model", OF_MODEL)
                            ),
                            "{{model}}",
                        ),
                    ),
                    description="If one model fails and others do not, look at its revisions"
                    " below; if all do, at regions.",
                    may_be_empty=True,
                ),
                Panel(
                    title="95th percentile of duration",
                    unit="s",
                    queries=(
                        Query(
                            quantile(
                                0.95,
                                "sluicegate_request_duration_seconds",
                                "model",
                                f'{OF_MODEL}, outcome="ok"',
                            ),
                            "{{model}}",
                        ),
                    ),
                    description="If it rises with the queue of the phases below, the model needs"
                    " backends; if with `run`, texts grew longer or the device is shared.",
                ),
                Panel(
                    title="Share of items found in a cache",
                    unit="percentunit",
                    queries=(
                        Query(
                            ratio(
                                rate(
                                    _ITEMS,
                                    "model",
                                    f'{OF_MODEL}, source=~"memory_hit|redis_hit|stale"',
                                ),
                                rate(_ITEMS, "model", OF_MODEL),
                            ),
                            "{{model}}",
                        ),
                    ),
                    description="It falls for a while after a new revision or a purge.",
                    may_be_empty=True,
                ),
            ),
        ),
        Row(
            "Revisions",
            (
                Panel(
                    title="Items by revision",
                    unit="ops",
                    stacked=True,
                    queries=(
                        Query(rate(_ITEMS, "model, revision", OF_MODEL), "{{model}} {{revision}}"),
                    ),
                    description="Two revisions for longer than a roll-out: repositories of backends"
                    " differ, or a split is on (`GET /admin/models/{model}/arms`).",
                ),
                Panel(
                    title="Failed items by revision",
                    unit="ops",
                    queries=(
                        Query(
                            rate(_ITEMS, "model, revision", f'{OF_MODEL}, source="failed"'),
                            "{{model}} {{revision}}",
                        ),
                    ),
                    description="If a new revision fails where the former does not, roll it back:"
                    " `POST /admin/models/{model}/rollback`.",
                    may_be_empty=True,
                ),
                Panel(
                    title="Items of backends by outcome",
                    unit="ops",
                    queries=(
                        Query(
                            rate("sluicegate_backend_items_total", "model, outcome", OF_MODEL),
                            "{{model}} {{outcome}}",
                        ),
                    ),
                    description="`refused`: queues are full. `expired`: the caller's time was over."
                    " `failed`: the model could not compute them.",
                ),
                Panel(
                    title="Backends that have loaded it",
                    unit="none",
                    queries=(
                        Query(
                            "sum by (model, revision)"
                            f" (sluicegate_backend_model_loaded{{{OF_MODEL}}})",
                            "{{model}} {{revision}}",
                        ),
                    ),
                    description="If it falls, a backend could not load: its `/health/ready` says"
                    " why.",
                ),
            ),
        ),
        Row(
            "Work",
            (
                Panel(
                    title="Rows computed",
                    unit="ops",
                    queries=(Query(rate("sluicegate_rows_total", "model", OF_MODEL), "{{model}}"),),
                    description="Sequences through the model. More rows at as many items: texts are"
                    " divided into windows or pairs.",
                ),
                Panel(
                    title="Tokens computed",
                    unit="ops",
                    queries=(
                        Query(rate("sluicegate_tokens_total", "model", OF_MODEL), "{{model}}"),
                    ),
                    description="What the time of a device goes by. More tokens a row: longer"
                    " texts.",
                ),
                Panel(
                    title="Phases in backends, 95th percentile",
                    unit="s",
                    queries=(
                        Query(
                            quantile(
                                0.95,
                                "sluicegate_backend_phase_duration_seconds",
                                "encoder, phase",
                            ),
                            "{{encoder}} {{phase}}",
                        ),
                    ),
                    description="`queue` rises: too few backends. `tokenize` rises: processor time"
                    " is short. `run` rises: long texts, or the device is shared.",
                ),
                Panel(
                    title="Lost processes of algorithms",
                    unit="none",
                    queries=(
                        Query(
                            f"sum by (model, reason) (increase({_LOST}{{{OF_MODEL}}}[1h]))",
                            "{{model}} {{reason}}",
                        ),
                    ),
                    description="The model owner's code hung, ended or took too much: send him the"
                    " reason (docs/algorithms.md).",
                    may_be_empty=True,
                ),
            ),
        ),
    ),
)
