"""Tests loads that single safeguards need."""

from testing.simulation.world.scenario import LARGE, LENGTH, make_requests


def test_a_twin_asks_another_worker_of_the_region_for_the_same() -> None:
    requests = make_requests(1, twins=1.0, count=40)

    assert len(requests) == 80
    for request in requests:
        twin = min(
            (each for each in requests if each is not request and each.body == request.body),
            key=lambda each: abs(each.at - request.at),
        )
        assert abs(twin.at - request.at) < 0.01
        assert twin.worker.split("-")[0] == request.worker.split("-")[0]
        assert twin.worker != request.worker or request.worker == "us-0"


def test_large_requests_come_in_the_middle() -> None:
    requests = make_requests(1, large=30)
    large = [each for each in requests if each.items == LARGE]

    assert len(large) == 30
    assert all(LENGTH / 4 <= each.at <= LENGTH * 3 / 4 for each in large)
    assert all(len(each.body["input"]) == LARGE for each in large)
