"""Tests that the size of a load follows from the figures, and that the page shows it."""

import msgspec
import pytest

from tests.docs.tables import page
from tools.sizing import Costs, Load, main, report, size


def test_a_gateway_carries_hits_and_misses_in_a_core_s_time() -> None:
    load = Load(requests=10_000, items=2, hits=0.5, memory_hits=1.0, use=0.5)
    costs = Costs(memory_hit=10e-6, miss=100e-6)

    found = size(load, costs)

    assert found.worker_cores == pytest.approx(10_000 * 10e-6 + 10_000 * 100e-6)
    assert found.workers == 2 * 3


def test_the_regions_that_remain_carry_the_misses() -> None:
    load = Load(requests=1_000, hits=0.0, row_millis=4.0, cores=2, use=0.5)

    two = size(load, Costs())
    three = size(msgspec.structs.replace(load, regions=3), Costs())

    assert two.backend_cores == pytest.approx(4.0)
    assert (two.backends, three.backends) == (4, 2)


def test_a_load_of_nothing_takes_one_of_each() -> None:
    found = size(Load(requests=0.0), Costs())

    assert (found.workers, found.backends) == (2, 1)


def test_the_worked_example_of_the_page_is_what_the_command_prints() -> None:
    assert report(Load(), Costs()) in page("docs/sizing.md")


@pytest.mark.parametrize("option", ["--hits=1.5", "--use=0", "--requests=-1", "--cores=0"])
def test_a_load_that_cannot_be_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([option])

    assert f"`{option.partition('=')[0]}` is out of range" in capsys.readouterr().err
