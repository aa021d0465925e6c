"""Checkpoints of `gliner` and `gliner2` find what these find, alone and in batches.

`make parity` draws new ones; some are kept here, with their answers.
"""

from pathlib import Path

import pytest

from tests.parity.gliner_served import compare_folder
from tests.parity.library_fixtures import fixture_names, unpack

pytestmark = pytest.mark.anyio
NAMES = [name for name in fixture_names() if name.startswith("gliner")]


@pytest.mark.parametrize("name", NAMES)
async def test_checkpoints_find_what_their_library_finds(tmp_path: Path, name: str) -> None:
    found, apart = await compare_folder(unpack(name, tmp_path), tmp_path / "models")

    assert found > 1000
    assert apart == []
