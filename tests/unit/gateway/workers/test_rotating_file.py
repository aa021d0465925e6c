"""A file of lines is renamed when it is large, and only so many are kept."""

from pathlib import Path

from sluicegate.gateway.workers.rotating_file import RotatingFile


def test_a_line_is_never_split_over_two_files(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "lines", max_bytes=10, keep=2)

    for line in (b"first\n", b"second\n", b"third\n"):
        file.append(line)

    assert (tmp_path / "lines").read_bytes() == b"third\n"
    assert (tmp_path / "lines.1").read_bytes() == b"second\n"
    assert (tmp_path / "lines.2").read_bytes() == b"first\n"


def test_the_oldest_file_is_deleted(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "lines", max_bytes=1, keep=2)

    for number in range(5):
        file.append(f"{number}\n".encode())

    assert {path.name for path in tmp_path.iterdir()} == {"lines", "lines.1", "lines.2"}
    assert (tmp_path / "lines.2").read_bytes() == b"2\n"


def test_a_file_grows_until_it_is_large(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "deep" / "lines", max_bytes=100, keep=2)

    file.append(b"a\n")
    file.append(b"b\n")

    assert (tmp_path / "deep" / "lines").read_bytes() == b"a\nb\n"


def test_a_line_that_a_power_cut_has_torn_takes_no_other_with_it(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"whole\n\0\0to")
    file = RotatingFile(tmp_path / "lines", max_bytes=100, keep=2)

    file.append(b"next\n")
    file.append(b"last\n")

    assert (tmp_path / "lines").read_bytes() == b"whole\n\0\0to\nnext\nlast\n"
