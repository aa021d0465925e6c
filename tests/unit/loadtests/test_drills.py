"""The page of drills has every step, its pictures, traces and the times of operators."""

import re

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from loadtests.drills.catalogue import DRILLS
from loadtests.drills.panels import find_panel, legend_of
from loadtests.drills.report import report
from loadtests.drills.results import BlindPlay, DrillResult, read_plays, read_results
from loadtests.drills.traces import as_text, find_traces
from tests.docs.tables import ROOT, page
from tools.monitoring.grafana import Query
from tools.monitoring.rules import alerts


def span(name: str, *, at: float, lasts: float, trace: int = 1, failed: bool = False) -> Span:
    return Span(
        trace_id=bytes([trace] * 16),
        span_id=name.encode(),
        parent_span_id=b"" if name == "root" else b"root",
        name=name,
        start_time_unix_nano=int(at * 1e9),
        end_time_unix_nano=int((at + lasts) * 1e9),
        status=Status(code=Status.STATUS_CODE_ERROR if failed else Status.STATUS_CODE_UNSET),
        attributes=[KeyValue(key="region", value=AnyValue(string_value="eu"))],
    )


def result(name: str) -> DrillResult:
    return DrillResult(
        name=name,
        fired={"EndpointSlow": 30.0, "RegionLost": 30.0, "LedgerDown": 45.0},
        expected=("EndpointSlow",),
        statuses={200: 1000},
        seconds=60.0,
        seen=[],
        traces={"longest": "trace 01"},
        date="2026-11-28",
        commit="abc",
        load=3.0,
    )


def test_drills_name_alerts_and_panels_that_exist() -> None:
    known = {alert.name for alert in alerts()}

    for drill in DRILLS:
        assert set(drill.alerts) <= known
        for uid, title in (*drill.panels, *(each for step in drill.steps for each in step.panels)):
            assert find_panel(uid, title)[1].queries


def test_the_page_is_what_was_recorded() -> None:
    results = read_results()
    ordered = [results[drill.name] for drill in DRILLS]

    assert page("docs/drills.md") == report(ordered, read_plays())


def test_every_picture_of_the_page_is_there_and_no_other() -> None:
    named = set(re.findall(r"\]\(images/drills/([^)]+)\)", page("docs/drills.md")))

    assert named == {path.name for path in (ROOT / "docs/images/drills").iterdir()}


def play(named_after: float, *, is_right: bool) -> BlindPlay:
    return BlindPlay(
        name="slow backend",
        date="2026-11-28",
        alert="EndpointSlow",
        alert_after=30.0,
        named_after=named_after,
        said="a disk",
        load=1.0,
        is_right=is_right,
    )


def test_the_time_to_the_cause_is_the_median_of_the_plays_that_were_right() -> None:
    plays = [play(seconds, is_right=True) for seconds in (10, 50, 20)] + [play(1, is_right=False)]

    text = report([result("slow backend")], plays)

    assert "| 1,000 x 200 | after 20 s, 3 of 4 right |" in text


def test_plays_that_all_named_a_wrong_cause_have_no_time() -> None:
    text = report([result("slow backend")], [play(77, is_right=False)])

    assert "| 1,000 x 200 | 0 of 1 right |" in text


def test_alerts_that_fire_at_one_moment_are_said_together() -> None:
    text = report([result("slow backend")], [])

    assert (
        "[EndpointSlow](runbooks/EndpointSlow.md) and [RegionLost](runbooks/RegionLost.md)"
        " after 30 s, then [LedgerDown](runbooks/LedgerDown.md) after 45 s."
    ) in text
    assert "```text\ntrace 01\n```" in text


def test_traces_that_failed_or_took_longest_come_first() -> None:
    spans = [
        span("root", at=10, lasts=1, trace=1),
        span("root", at=11, lasts=3, trace=2, failed=True),
        span("root", at=5, lasts=9, trace=3),
        span("call", at=10.5, lasts=0.25, trace=1),
    ]

    longest = find_traces(spans, "longest", since=9)
    failed = find_traces(spans, "failed", since=9)

    assert [each[0].trace_id[0] for each in longest] == [2, 1]
    assert [each[0].trace_id[0] for each in failed] == [2]
    assert as_text(longest[1]).splitlines()[1:] == [
        "     0.0 ms   1000.0 ms  root  region=eu",
        "   500.0 ms    250.0 ms    call  region=eu",
    ]
    assert "root FAILED" in as_text(failed[0])


def test_a_legend_has_no_label_that_an_answer_lacks() -> None:
    query = Query("x", "{{region}} {{endpoint}} {{cause}}")

    assert legend_of(query, {"region": "eu", "endpoint": "eu-0"}) == "eu eu-0"
