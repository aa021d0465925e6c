"""Checkpoints that the reference libraries wrote are answered as they do, or refused by name.

`make parity` draws new ones of every family; some are kept here, with the libraries' answers.
"""

from pathlib import Path

import pytest

from tests.parity.library_answers import FAMILIES, SMALL, read_answers
from tests.parity.library_fixtures import fixture_names, unpack
from tests.parity.library_served import compare_folders

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("family", [*FAMILIES, *SMALL])
async def test_checkpoints_of_the_libraries_are_answered_alike(tmp_path: Path, family: str) -> None:
    """Their texts hold special tokens, that of the padding too."""
    names = [name for name in fixture_names() if name.rpartition("-")[0] == family.lower()]
    folders = [unpack(name, tmp_path / "sources") for name in names]

    verdicts = await compare_folders(folders, tmp_path / "models")

    assert names
    assert [each for each in verdicts if each.kind != "equal"] == []
    assert all(read_answers(folder).scores for folder in folders)
