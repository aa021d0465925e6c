"""Finding the files of a folder that are mount points, as the kernel lists them."""

from pathlib import Path

from sluicegate.gateway.config.mounts import check_mounts, mounted_files


def test_files_of_the_folder_are_found_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    (folder / "deeper").mkdir(parents=True)
    for name in ("gateway.yaml", "models.yaml", "deeper/prices.yaml"):
        (folder / name).touch()
    mounts = tmp_path / "mountinfo"
    escaped = str(folder).replace(" ", "\\040")
    mounts.write_text(
        "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        f"31 22 8:1 /x {escaped}/gateway.yaml ro - ext4 /dev/sda1 rw\n"
        f"32 22 8:1 /y {escaped}/deeper rw - ext4 /dev/sda1 rw\n"
        f"33 22 8:1 /z {escaped}/deeper/prices.yaml rw - ext4 /dev/sda1 rw\n"
    )

    assert mounted_files(folder, mounts) == [folder / "gateway.yaml"]


def test_where_there_is_no_list_nothing_is_said(tmp_path: Path) -> None:
    assert mounted_files(tmp_path, tmp_path / "missing") == []


def test_a_folder_that_is_mounted_as_a_whole_is_fine(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").touch()

    check_mounts(tmp_path)
