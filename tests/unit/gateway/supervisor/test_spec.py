"""The order in which processes stop."""

from sluicegate.gateway.supervisor.spec import STOP_ORDER, ProcessRole, ProcessSpec, stop_groups


def spec(role: ProcessRole, index: int = 0) -> ProcessSpec:
    return ProcessSpec(name=f"{role}-{index}", role=role, argv=())


def test_every_role_but_the_supervisor_has_its_place_in_the_order() -> None:
    placed = [role for group in STOP_ORDER for role in group]

    assert sorted(placed) == sorted(set(ProcessRole) - {ProcessRole.SUPERVISOR})


def test_who_makes_work_stops_before_who_takes_it() -> None:
    specs = [spec(role) for role in ProcessRole if role is not ProcessRole.SUPERVISOR]
    specs.append(spec(ProcessRole.GATEWAY, 1))

    names = [[spec.name for spec in group] for group in stop_groups(specs)]

    assert names == [
        ["batches-0", "gateway-0", "gateway-1"],
        ["admin-0"],
        ["shipper-0"],
        ["billing-0", "request-log-0"],
        ["backend-0"],
        ["valkey-cache-0", "valkey-state-0"],
    ]


def test_roles_that_do_not_run_are_left_out() -> None:
    assert stop_groups([]) == []
    assert [len(group) for group in stop_groups([spec(ProcessRole.ADMIN)])] == [1]
