"""The Dockerfiles are linted, pinned, built in stages and run as nobody special."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.backends.settings import read_settings
from sluicegate.gateway.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "deploy").glob("*.Dockerfile"))
HADOLINT = Path(sys.executable).parent / "hadolint"


def stages(text: str) -> list[str]:
    """Return the text of each stage."""
    return re.split(r"^(?=FROM )", text, flags=re.MULTILINE)[1:]


def variables(text: str) -> dict[str, str]:
    return dict(re.findall(r"(SLUICEGATE_\w+)=(\S+)", text))


def test_there_is_one_for_each_kind_of_machine() -> None:
    assert [path.stem for path in FILES] == ["backend-cpu", "backend-gpu", "gateway"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_hadolint_finds_nothing(path: Path) -> None:
    result = subprocess.run(
        [HADOLINT, "--no-color", path], check=False, capture_output=True, text=True
    )

    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_base_images_are_pinned_and_the_result_holds_no_build_tools(path: Path) -> None:
    parts = stages(path.read_text())
    named = {match for part in parts for match in re.findall(r"^FROM \S+ AS (\S+)", part)}

    for part in parts:
        base = part.split()[1]
        assert base in named or re.search(r":\d+\.\d+\.\d+-", base)
    assert "pip install" in parts[0]
    assert "pip install" not in parts[-1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_built_the_project_does_not_run_with_it(path: Path) -> None:
    text = path.read_text()
    builders = re.findall(r"^([\w-]+)", (ROOT / "requirements/build.in").read_text(), re.MULTILINE)
    (removed,) = re.findall(r"pip uninstall --yes \\\n(.+)$", text, re.MULTILINE)

    assert {*builders, "pip", "setuptools"} <= set(removed.split())
    (runs,) = [part for part in stages(text) if "USER 10001:10001" in part]
    assert "rm -rf /usr/local/bin/pip*" in runs
    assert "apt-get" not in text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_packages_are_checked_against_their_hashes(path: Path) -> None:
    for line in path.read_text().splitlines():
        if "pip install" in line:
            assert "--no-deps" in line
            assert "--require-hashes -r requirements/" in line or line.endswith((" .", " . \\"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_process_is_not_root(path: Path) -> None:
    users = re.findall(r"^USER (.+)$", path.read_text(), re.MULTILINE)

    assert users == ["10001:10001"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_variable_that_an_image_sets_is_understood(path: Path) -> None:
    told = variables(path.read_text())

    if path.stem == "gateway":
        known = {f"SLUICEGATE_{name.upper()}" for name in load_settings(told).__struct_fields__}
    else:
        fields = read_settings(told).__struct_fields__
        known = {f"SLUICEGATE_BACKEND_{name.upper()}" for name in fields}
    assert set(told) <= known


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_everything_that_is_copied_is_sent_to_the_build(path: Path) -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", path.read_text(), re.MULTILINE)
    sent = {
        line.removeprefix("!").split("/")[0]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }

    for source in " ".join(copied).split():
        assert (ROOT / source).exists()
        assert source.split("/")[0] in sent
