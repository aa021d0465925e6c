"""Packs some of the checkpoints that the libraries wrote, for `make test`.

`python -m tests.parity.library_fixtures FOLDER NAME...` packs them and their answers.
"""

import argparse
import zipfile
from pathlib import Path

from tests.parity.library_answers import answers_file
from tests.parity.texts import DATA

FIXTURES, OUTPUTS = DATA / "library", DATA / "outputs"


def unpack(name: str, folder: Path, *, fixtures: Path = FIXTURES) -> Path:
    """Unpack a checkpoint and its answers; return its folder."""
    with zipfile.ZipFile(fixtures / f"{name}.zip") as archive:
        archive.extractall(folder)
    return folder / name


def fixture_names(fixtures: Path = FIXTURES) -> list[str]:
    """Return the names of all packed checkpoints."""
    return sorted(path.stem for path in fixtures.glob("*.zip"))


def main() -> None:
    """Pack checkpoints, each in a file of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--into", type=Path, default=FIXTURES)
    given = parser.parse_args()
    given.into.mkdir(exist_ok=True)
    for name in given.names:
        files = [path for path in (given.folder / name).rglob("*") if path.is_file()]
        with zipfile.ZipFile(given.into / f"{name}.zip", "w", zipfile.ZIP_LZMA) as archive:
            for path in sorted([*files, answers_file(given.folder / name)]):
                if path.name != "README.md":
                    # Without a time, so that a file packed again is the same.
                    entry = zipfile.ZipInfo(str(path.relative_to(given.folder)))
                    entry.compress_type = zipfile.ZIP_LZMA
                    archive.writestr(entry, path.read_bytes())


if __name__ == "__main__":
    main()
