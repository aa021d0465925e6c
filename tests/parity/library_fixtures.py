"""Packs some of the checkpoints that the libraries wrote, for `make test`.

`python -m tests.parity.library_fixtures FOLDER NAME...` packs them and their answers.
"""

import argparse
import tarfile
from pathlib import Path

from tests.parity.library_answers import answers_file
from tests.parity.texts import DATA

FIXTURES = DATA / "library"


def unpack(name: str, folder: Path) -> Path:
    """Unpack a checkpoint and its answers; return its folder."""
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def fixture_names() -> list[str]:
    """Return the names of all packed checkpoints."""
    return sorted(path.name.removesuffix(".tar.xz") for path in FIXTURES.glob("*.tar.xz"))


def main() -> None:
    """Pack checkpoints, each in a file of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    given = parser.parse_args()
    FIXTURES.mkdir(exist_ok=True)
    for name in given.names:
        with tarfile.open(FIXTURES / f"{name}.tar.xz", "w:xz", preset=9) as archive:
            for path in (given.folder / name, answers_file(given.folder / name)):
                archive.add(path, path.relative_to(given.folder), filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()
