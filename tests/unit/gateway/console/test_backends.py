"""The backends of a page, after a filter, and what workers predict of each."""

import pytest

from sluicegate.gateway.console.backends import select
from sluicegate.gateway.console.fleet import Backend, EndpointReport, FleetView


def test_a_page_has_at_most_a_hundred_backends() -> None:
    backends = [
        Backend(
            id=f"eu-{number}",
            region="eu",
            url="",
            pool="default",
            drained=False,
            is_entry=False,
            seen=(),
        )
        for number in range(250)
    ]
    fleet = FleetView(regions={"eu": backends}, workers=[])

    pages = [select(fleet, query="", attention=False, page=page) for page in (1, 3, 99)]

    assert [(page.page, len(page.regions["eu"]), page.pages) for page in pages] == [
        (1, 100, 3),
        (3, 50, 3),
        (3, 50, 3),
    ]


@pytest.mark.parametrize(
    ("healths", "share", "finish"),
    [
        (["ready", "ready"], 0.5, 0.02),
        (["ready", "unreachable"], 0.5, 0.01),
        (["unreachable", "not_ready"], None, None),
        ([], None, None),
    ],
)
def test_only_workers_that_find_a_backend_ready_predict_what_it_does(
    healths: list[str], share: float | None, finish: float | None
) -> None:
    seen = [
        EndpointReport(backend="eu-0", health=health, share=number * 0.5, finish_time=number * 0.01)
        for number, health in enumerate(healths, 1)
    ]

    backend = Backend(
        id="eu-0", region="eu", url="", pool="p", drained=False, is_entry=False, seen=seen
    )

    assert (backend.share, backend.finish) == (share, finish)


def test_a_drained_backend_predicts_nothing() -> None:
    seen = [EndpointReport(backend="eu-0", health="ready", share=1.0, finish_time=0.01)]

    backend = Backend(
        id="eu-0", region="eu", url="", pool="p", drained=True, is_entry=False, seen=seen
    )

    assert (backend.share, backend.finish) == (None, None)
