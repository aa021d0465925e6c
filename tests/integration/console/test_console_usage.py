"""The console's pages of usage, margins and dead letters."""

import re
import time

import httpx
import msgspec
import pytest

from sluicegate.gateway.console.usage_series import Measure
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.types import EventBlock
from sluicegate.gateway.operations.publishing import Publisher
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.types import Usage
from tests.support.events import make_event
from tests.support.ledgers import record

pytestmark = pytest.mark.anyio
_PRICED = """\
regions:
- name: eu
  pools: [{cost_per_hour: 2, backends: [{id: eu-1, url: "http://10.0.0.1:1"}]}]
prices: [{computed: 1000000000}]
"""


def fill(ledger: Ledger) -> None:
    """Record two requests of now."""
    now = time.time_ns()
    events = [
        make_event(1, time=now, usage=Usage.of(computed=7)),
        make_event(2, time=now, tenant="beta", usage=Usage.of(hit=3)),
    ]
    record(ledger, "log", 2, events)


def charts_of(page: str) -> list[dict[str, float]]:
    """Return the sum of each line of each chart."""
    found = []
    for text in re.findall(r'data-chart="([^"]+)"', page):
        chart = msgspec.json.decode(text.replace("&#34;", '"'))
        found.append({line["label"]: sum(line["values"]) for line in chart["series"]})
    return found


async def test_usage_by_model_counts_requests_that_named_none(
    operator: httpx.AsyncClient, ledger: Ledger
) -> None:
    event = make_event(1, time=time.time_ns(), model="", usage=Usage.of(failed=1))
    record(ledger, "log", 1, [event])

    by_model = (await operator.get("/console/usage/figures?by=model")).text
    by_tenant = (await operator.get("/console/usage/figures?by=tenant")).text

    assert "leaves out 1 free request" in by_model
    assert "leaves out" not in by_tenant


async def test_usage_is_drawn_by_source_and_tenant(
    operator: httpx.AsyncClient, ledger: Ledger
) -> None:
    fill(ledger)

    page = (await operator.get("/console/usage?by=tenant&span=30d")).text
    figures = (await operator.get("/console/usage/figures?by=tenant&span=30d")).text
    of_one = (await operator.get("/console/usage/figures?by=tenant&tenant=beta")).text

    assert 'hx-get="/console/usage/figures?span=30d&amp;by=tenant' in page
    sources, tenants, money = charts_of(figures)
    assert sources == {"hit": 3, "collapsed": 0, "computed": 7, "failed": 0}
    assert tenants == {"acme": 7, "beta": 3}
    assert money == {"charged": 0}
    assert "cost_per_hour" in figures
    assert charts_of(of_one)[1] == {"beta": 3}


async def test_usage_is_drawn_and_downloaded_by_the_region_of_backends(
    operator: httpx.AsyncClient, ledger: Ledger
) -> None:
    now = time.time_ns()
    event = make_event(1, time=now, usage=Usage.of(computed=7))
    cached = make_event(2, time=now, usage=Usage.of(hit=3))
    record(ledger, "log", 2, [msgspec.structs.replace(event, backend_region="us"), cached])

    page = (await operator.get("/console/usage?by=backend_region")).text
    figures = (await operator.get("/console/usage/figures?by=backend_region")).text
    export = (await operator.get("/console/usage/export?by=backend_region&span=month")).text

    assert "backend region</option>" in page
    assert charts_of(figures)[1] == {"us": 7, "none": 3}
    assert "By backend region, sorted" in figures
    assert export.startswith("day,model,backend_region,requests")


@pytest.mark.parametrize("measure", Measure)
async def test_each_measure_is_a_chart_and_a_column(
    operator: httpx.AsyncClient, ledger: Ledger, measure: Measure
) -> None:
    fill(ledger)

    figures = (await operator.get(f"/console/usage/figures?measure={measure.value}")).text

    assert f"sorted by {measure.label}" in figures
    assert f'<th scope="col" class="num">{measure.label.capitalize()}</th>' in figures
    assert figures.count('<th scope="col"') == len(Measure) + 2


async def test_usage_that_is_slow_to_read_is_not_read_for_a_year(
    operator: httpx.AsyncClient, ledger: Ledger
) -> None:
    page = (await operator.get("/console/usage?by=region&span=365d")).text
    answers = [
        await operator.get(f"/console/usage/{what}?by=region&span=365d")
        for what in ("figures", "export")
    ]

    assert "at most 31 days" in page
    assert "hx-get" not in page.partition('id="measure"')[2]
    assert [answer.status_code for answer in answers] == [400, 400]


async def test_the_margin_follows_the_cost_of_backends(
    operator: httpx.AsyncClient, ledger: Ledger, settings: Settings, redis: object
) -> None:
    fill(ledger)
    publisher = Publisher(
        control=Control(redis),  # type: ignore[arg-type]  # the fixture's type
        ledger=ledger,
        settings=settings,
        clock=lambda: time.time_ns() / 1e9 - 3_600,
        workers_timeout=0,
    )
    await publisher.put(_PRICED, if_match="", author="kim")

    figures = (await operator.get("/console/usage/figures")).text

    money = charts_of(figures)[2]
    assert money["charged"] == 7
    assert money["backends"] == pytest.approx(2, abs=0.01)
    assert money["margin"] == pytest.approx(5, abs=0.01)


async def test_usage_is_downloaded_as_csv(operator: httpx.AsyncClient, ledger: Ledger) -> None:
    fill(ledger)

    answer = await operator.get("/console/usage/export?by=tenant&span=month")

    head, *lines = answer.text.splitlines()
    assert head.startswith("day,tenant,model,requests")
    assert len(lines) == 2
    assert "attachment" in answer.headers["content-disposition"]


async def test_dead_letters_are_shown_replayed_and_discarded(
    operator: httpx.AsyncClient, ledger: Ledger
) -> None:
    wrong = [msgspec.msgpack.encode(make_event(1)), b"\xc1"]
    ledger.recorder.record([EventBlock(log_id="log-1", first=1, last=2, wrong=wrong)])
    page = "/console/dead-letters"

    listed = (await operator.get(page)).text
    content = (await operator.get(f"{page}/1")).text
    replayed = (await operator.post(f"{page}/1/replay")).text
    stuck = await operator.post(f"{page}/2/replay", headers={"hx-request": "true"})
    discarded = (await operator.post(f"{page}/2/discard")).text

    assert "2 dead letters" in listed
    assert "sentiment" in content
    assert "Dead letter 1 is counted: 1 requests." in replayed
    assert stuck.status_code == 400
    assert "No dead letters" in discarded
    actions = [entry.action for entry in ledger.audit.entries(limit=2)]
    assert actions == ["dead_letter.discard", "dead_letter.replay"]
