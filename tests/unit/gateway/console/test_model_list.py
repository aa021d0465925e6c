"""Which models are listed, and why one is not served."""

from sluicegate.gateway.console.fleet import Backend, EndpointReport, FleetView
from sluicegate.gateway.console.model_list import ModelRow, list_models
from sluicegate.gateway.console.traffic import Reading, traffic_between
from sluicegate.wire.plans import ServingPlans
from sluicegate.wire.protocol import ModelState


def backend(
    name: str,
    *,
    health: str = "ready",
    drained: bool = False,
    problem: str = "",
    state: ModelState | None = None,
) -> Backend:
    seen = EndpointReport(
        backend=name,
        health=health,
        models={} if problem else {"mood": "abc"},
        problems={"mood": problem} if problem else {},
        states={"mood": state} if state else {},
        share=1.0,
    )
    return Backend(
        id=name,
        region="eu",
        url="http://127.0.0.1:1",
        pool="default",
        drained=drained,
        is_entry=False,
        seen=[seen],
    )


def listed(*backends: Backend, configured: tuple[str, ...] = ()) -> dict[str, ModelRow]:
    fleet = FleetView(
        regions={"eu": list(backends)}, workers=["w"], configured=frozenset(configured)
    )
    traffic = traffic_between(Reading(at=0.0, values={}), Reading(at=1.0, values={}))
    return {row.name: row for row in list_models(fleet, ServingPlans(), traffic)}


def test_a_model_is_served_by_the_backends_in_use() -> None:
    mood = listed(backend("eu-0"), backend("eu-1", drained=True))["mood"]

    assert mood.revisions == {"abc": 1}
    assert mood.unserved == ""


def test_the_states_of_a_model_loaded_on_demand_are_counted() -> None:
    cold, warm = backend("eu-0", state="declared"), backend("eu-1", state="loaded")

    assert listed(cold, warm, backend("eu-2"))["mood"].states == {"declared": 1, "loaded": 1}
    assert [each.loaded for each in (cold, warm, backend("eu-2"))] == [0, 1, 1]


def test_a_model_on_drained_backends_alone_is_not_served() -> None:
    mood = listed(backend("eu-0", drained=True), backend("eu-1", health="not_ready"))["mood"]

    assert mood.revisions == {}
    assert mood.unserved == "eu-0 is drained, eu-1 is not ready"


def test_a_model_that_fails_to_load_is_not_served() -> None:
    assert listed(backend("eu-0", problem="no file"))["mood"].unserved == (
        "every backend that has it fails to load it"
    )


def test_a_model_of_the_document_that_no_backend_has_is_listed() -> None:
    assert listed(backend("eu-0"), configured=("intents",))["intents"].unserved == (
        "no backend has it in its repository"
    )


def test_a_drained_backend_has_no_share() -> None:
    assert backend("eu-0").share == 1.0
    assert backend("eu-0", drained=True).share is None
