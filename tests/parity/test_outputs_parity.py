"""Sparse vectors and token vectors equal those of the reference libraries."""

from pathlib import Path

import pytest

from tests.parity.comparison import TOLERANCE
from tests.parity.library_fixtures import OUTPUTS, fixture_names, unpack
from tests.parity.outputs_served import largest_differences

pytestmark = pytest.mark.anyio


async def test_outputs_are_those_of_the_libraries(tmp_path: Path) -> None:
    names = fixture_names(OUTPUTS)
    folders = [unpack(name, tmp_path / "sources", fixtures=OUTPUTS) for name in names]

    found = await largest_differences(folders, tmp_path / "models")

    assert {name.partition("-")[0] for name in names} == {"splade", "late", "native", "joined"}
    assert {name: apart for name, apart in found.items() if not apart <= TOLERANCE} == {}
