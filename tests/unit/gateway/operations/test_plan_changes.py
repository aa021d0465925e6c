"""What backends would serve is compared before a plan is in force; the readout adds up."""

import msgspec
import pytest

from sluicegate.gateway.errors import PlanRefused
from sluicegate.gateway.ledger.types import RevisionCost
from sluicegate.gateway.operations.plan_changes import check_equal
from sluicegate.gateway.operations.revisions import percentile, views
from sluicegate.wire.plans import RevisionStatistics, Serving, duration_bucket
from sluicegate.wire.protocol import ModelInfo
from testing.stub_backend import stub_model

SHARED = Serving(revisions={"1": 90, "2": 10})


def infos(**changes: object) -> list[ModelInfo]:
    """Return what a backend would serve; `changes` are of the second revision."""
    model = msgspec.structs.replace(stub_model("mood"), labels=["bad", "good"])
    first, second = (msgspec.structs.replace(model, name=f"mood@{n}") for n in (1, 2))
    return [
        msgspec.structs.replace(model, serving=SHARED),
        first,
        msgspec.structs.replace(second, **changes),
    ]


def test_equal_backends_with_revisions_of_one_kind_are_accepted() -> None:
    check_equal({"eu-0": infos(), "us-0": infos(labels=["good", "bad"])}, "mood")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ["bad", "fine"]}, "labels of `mood` .*'good'.* and .*'fine'"),
        ({"dimensions": 7}, "dimensions of `mood`"),
        ({"tasks": []}, "tasks of `mood`"),
    ],
)
def test_revisions_of_other_kinds_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PlanRefused, match=message):
        check_equal({"eu-0": infos(**changes), "us-0": infos(**changes)}, "mood")


def test_backends_with_other_files_are_refused_by_name() -> None:
    with pytest.raises(PlanRefused, match=r"`mood@2` .*`eu-0`; `abc` on `us-0`"):
        check_equal({"eu-0": infos(), "us-0": infos(revision="abc")}, "mood")


def test_the_readout_adds_up_the_counts_of_all_backends() -> None:
    cost = RevisionCost(
        arm="1",
        hit=5,
        collapsed=1,
        computed=84,
        failed=0,
        rows=9,
        tokens=90,
        cost="0.9",
        currency="EUR",
    )
    costs = [cost, msgspec.structs.replace(cost, arm="2", hit=0, computed=9, cost="0.1")]
    counted = RevisionStatistics(
        model="mood",
        arm="1",
        outcomes={"done": 2},
        labels={"good": 2},
        shadows={"3": {"same": 6, "moved": 2, "changed": 2, "skipped": 5}},
        largest={"3": 0.2},
    )

    one, two = views(SHARED, costs, {"1": [counted, counted]})

    assert (one.items, one.share, one.wanted_share) == (90, 0.9, 0.9)
    assert (two.items, two.share, two.costs) == (10, 0.1, {"EUR": "0.1"})
    assert one.answers.labels == {"good": 4}
    assert one.answers.shadows["3"].agreement == 0.8
    assert one.answers.shadows["3"].items["skipped"] == 10


@pytest.mark.parametrize("seconds", [0.00005, 0.0004, 0.003, 0.25, 7.0])
def test_percentiles_are_right_within_a_tenth(seconds: float) -> None:
    durations = {duration_bucket(seconds): 99, duration_bucket(60.0): 1}

    assert percentile(durations, 0.99) == pytest.approx(max(seconds, 0.0001), rel=0.1)
    assert percentile(durations, 1.0) == pytest.approx(60.0, rel=0.1)
    assert percentile({}, 0.5) == 0.0
