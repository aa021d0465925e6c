"""Lists the drills: each fault, its alerts, and the steps of an operator to the cause."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal

import msgspec

from loadtests.drills import faults
from loadtests.drills.camera import ConsoleView
from loadtests.drills.faults import Scene
from loadtests.drills.traces import Kind

OVERVIEW = ConsoleView(path="/console")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator looks at, and what it says: a page of the console, panels or a trace."""

    text: str
    view: ConsoleView | None = None
    panels: tuple[tuple[str, str], ...] = ()
    """Dashboard and title of each."""
    trace: Kind | None = None


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """A fault, the alerts that should name it, and the panels that an operator looks at."""

    name: str
    what: str
    inject: Callable[[Scene], AbstractContextManager[None]]
    alerts: tuple[str, ...]
    panels: tuple[tuple[str, str], ...]
    """Dashboard and title of each."""
    cause: str
    """What the operator names in the end."""
    steps: tuple[Step, ...] = ()
    """After the overview of the console, which comes first."""


def file_of(drill: Drill, number: int, *, kind: Literal["webp", "svg"] = "webp") -> str:
    """Return the name of the picture of a step; 0 is the overview when the alert fires."""
    return f"{drill.name.lower().replace(' ', '-')}-{number}.{kind}"


DRILLS = (
    Drill(
        name="slow backend",
        what="the backend of the preferred region gets a tenth of its processor time",
        inject=faults.slow_backend,
        alerts=(
            "EndpointSlow",
            "LatencyBudgetBurnsFast",
            "EndpointFailsCalls",
            "WorkLeavesItsRegion",
        ),
        panels=(
            ("incident", "99th percentile by model"),
            ("incident", "Predicted finish"),
            ("region", "Share of its work that it is given"),
            ("region", "Hedges, retries and items that went to another region"),
            ("region", "Failures by cause"),
        ),
        cause="one backend's predicted finish is far above the other's, which works as before",
        steps=(
            Step(
                text="The [page of the alert](runbooks/EndpointSlow.md) leads to *Predicted"
                " finish*: one backend's line leaves the others'. Callers notice little: hedges"
                " and the other region take its work.",
                panels=(
                    ("incident", "Predicted finish"),
                    ("incident", "99th percentile by model"),
                    ("incident", "Items that went to another region"),
                ),
            ),
            Step(
                text="The console's page *Backends* names the slow backend. Drain it there.",
                view=ConsoleView(path="/console/backends", height=380),
            ),
            Step(
                text="The longest trace since the fault went to the backend of the other region."
                " None of the sampled 1 % of requests reached the slow backend. So the traces show"
                " that callers are not harmed, and only the panel names the backend.",
                trace="longest",
            ),
        ),
    ),
    Drill(
        name="lost region",
        what="every backend of the preferred region is killed whenever it starts",
        inject=faults.lost_region,
        alerts=("RegionLost",),
        panels=(
            ("incident", "Share of backends ready, by region"),
            ("incident", "Requests that failed, by model and outcome"),
            ("incident", "Items that went to another region"),
            ("region", "Failures by cause"),
        ),
        cause="no backend of `eu` is ready, and its items go to `us`",
        steps=(
            Step(
                text="The overview names the lost region and links to the page *Backends*, which"
                " says why no backend is ready.",
                view=ConsoleView(path="/console/backends", height=380),
            ),
            Step(
                text="The dashboards show when the fault began, that no request fails, and where"
                " the work went. The supervisor starts the backends again and again: they end by"
                " themselves, and the network to them works.",
                panels=(
                    ("incident", "Share of backends ready, by region"),
                    ("incident", "Items that went to another region"),
                    ("incident", "Changes: documents taken, processes started again"),
                ),
            ),
        ),
    ),
    Drill(
        name="hot tenant",
        what="a tenant with 300 requests a minute sends 3,600",
        inject=faults.hot_tenant,
        alerts=("LimitRefusesMany",),
        panels=(
            ("incident", "Refused by limits"),
            ("money", "Decisions of limits"),
            ("overview", "Requests by outcome"),
        ),
        cause="one limit refuses; the overview of the console names the tenant `birch`",
        steps=(
            Step(
                text="The dashboard says which limit refuses, and since when. Metrics name no"
                " tenants.",
                panels=(
                    ("incident", "Refused by limits"),
                    ("overview", "Requests by outcome"),
                ),
            ),
            Step(
                text="The overview names the tenants whose requests are refused. It leads to the"
                " page of the first one, which shows its limits.",
                view=ConsoleView(path="/console/tenants/birch", height=500),
            ),
            Step(
                text="*Usage* by tenant agrees: it counts refused items as failed. It adds up"
                " hours, so a tenant that has just begun may be far down.",
                view=ConsoleView(path="/console/usage?by=tenant&span=24h", height=900),
            ),
        ),
    ),
    Drill(
        name="broken revision",
        what="a new revision of one model raises an error for every item",
        inject=faults.broken_revision,
        alerts=("RevisionFails",),
        panels=(
            ("incident", "Requests that failed, by model and outcome"),
            ("incident", "Failed items by revision"),
            ("model", "Items by revision"),
            ("model", "Share of requests that failed"),
        ),
        cause="one model fails, and only its new revision",
        steps=(
            Step(
                text="The [page of the first alert](runbooks/AvailabilityBudgetBurnsFast.md) leads"
                " to the incident dashboard: one model fails, and there one revision.",
                panels=(
                    ("incident", "Requests that failed, by model and outcome"),
                    ("incident", "Failed items by revision"),
                    ("model", "Items by revision"),
                ),
            ),
            Step(
                text="The page of the model shows that every backend serves the failing revision.",
                view=ConsoleView(path="/console/models/judge", height=320),
            ),
            Step(
                text="The audit shows who changed what just before the fault began.",
                view=ConsoleView(path="/console/audit"),
            ),
            Step(
                text="A failed request leaves a span although it was not sampled. A backend"
                " answered with an error (`upstream_failed`), so it was reached and had room."
                " Only the log of the backend has the text of the error.",
                trace="failed",
            ),
        ),
    ),
    Drill(
        name="full disk",
        what="the disk of the data directory is filled to its last block",
        inject=faults.full_disk,
        alerts=("DataDiskFull", "DataDiskNearlyFull", "EventLogNotWritable"),
        panels=(
            ("incident", "Free space of data directories"),
            ("incident", "Requests that failed, by model and outcome"),
            ("money", "Bytes that are not shipped"),
        ),
        cause="no space is left: the state Redis cannot write either, and requests fail with"
        " `event_log_unavailable` once the room that event logs reserve is used",
        steps=(
            Step(
                text="The overview names the disk first, and its consequences below: the state"
                " Redis shares the disk. The alerts of both fire within seconds, in either order,"
                " so the [page of StateRedisDown](runbooks/StateRedisDown.md) asks about the disk"
                " first. *Free space of data directories* falls before *Reached* does.",
                panels=(
                    ("incident", "Reached"),
                    ("incident", "Free space of data directories"),
                    ("incident", "Limits decided without Redis"),
                ),
            ),
        ),
    ),
    Drill(
        name="lost Redis",
        what="both Redis are stopped: they answer nothing and keep their connections",
        inject=faults.lost_redis,
        alerts=("CacheRedisDown", "StateRedisDown"),
        panels=(
            ("incident", "Reached"),
            ("incident", "Limits decided without Redis"),
            ("incident", "Lag of events"),
            ("cache", "Look-ups that failed"),
            ("incident", "99th percentile by model"),
        ),
        cause="`cache_redis` and `state_redis` are at 0, everything else follows from that",
        steps=(
            Step(
                text="*Reached* falls to 0 for both Redis at one moment, and *Free space of data"
                " directories* does not move.",
                panels=(
                    ("incident", "Reached"),
                    ("incident", "Limits decided without Redis"),
                    ("incident", "Free space of data directories"),
                ),
            ),
        ),
    ),
)
