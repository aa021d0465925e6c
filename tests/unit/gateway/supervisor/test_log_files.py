"""Log files of running processes are rotated where they stand."""

from pathlib import Path

from sluicegate.gateway.supervisor.log_files import rotate


def test_a_file_that_is_too_large_is_emptied_under_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "gateway-0.log"
    with path.open("ab", buffering=0) as written:
        written.write(b"old\n" * 100)

        rotate(tmp_path, max_bytes=100)
        written.write(b"new\n")

    assert path.read_bytes() == b"new\n"
    assert path.with_name("gateway-0.log.1").read_bytes() == b"old\n" * 100


def test_one_older_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "gateway-0.log"
    for letter in (b"a", b"b"):
        path.write_bytes(letter * 200)
        rotate(tmp_path, max_bytes=100)

    assert sorted(each.name for each in tmp_path.iterdir()) == ["gateway-0.log", "gateway-0.log.1"]
    assert path.with_name("gateway-0.log.1").read_bytes() == b"b" * 200


def test_a_small_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "gateway-0.log"
    path.write_bytes(b"a" * 100)

    rotate(tmp_path, max_bytes=100)

    assert path.read_bytes() == b"a" * 100
    assert list(tmp_path.iterdir()) == [path]


def test_where_no_copy_can_be_made_the_room_is_given_back_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "gateway-0.log"
    path.write_bytes(b"a" * 200)
    path.with_name("gateway-0.log.1").symlink_to("/dev/full")

    rotate(tmp_path, max_bytes=100)

    assert path.read_bytes() == b""
