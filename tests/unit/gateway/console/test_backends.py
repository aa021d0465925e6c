"""The backends of a page, after a filter."""

from gateway.console.backends import select
from gateway.console.fleet import Backend, FleetView


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
