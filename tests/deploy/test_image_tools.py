"""Images are pinned all or none, and the lists of packages hold what is in them."""

import re
from pathlib import Path

import pytest

from testing.compose_files import compose_paths
from tests.deploy.compose_file import EVERYTHING
from tools import pin_images, sbom

DIGEST = "sha256:" + "0a" * 32
TEXT = """\
FROM python:3.11.13-slim-bookworm AS build
FROM build AS demo
services:
  own: {}
    image: sluicegate-gateway:0.1.0
  foreign:
    image: registry.example:5000/team/redis:8.2.1-alpine
"""
FOREIGN = ["python:3.11.13-slim-bookworm", "registry.example:5000/team/redis:8.2.1-alpine"]


def test_images_of_others_get_a_digest_behind_their_tag_and_a_new_one_later(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(TEXT)

    pin_images.pin([path], lambda _: "sha256:" + "1b" * 32)
    digests = pin_images.pin([path], lambda _: DIGEST)

    assert list(digests) == FOREIGN
    expected = TEXT
    for name in FOREIGN:
        expected = expected.replace(name, f"{name}@{DIGEST}")
    assert path.read_text() == expected


def test_a_registry_that_does_not_answer_leaves_every_file_as_it_was(tmp_path: Path) -> None:
    paths = [tmp_path / "compose.yaml", tmp_path / "gateway.Dockerfile"]
    for path in paths:
        path.write_text(TEXT)

    def resolve(name: str) -> str:
        if name == FOREIGN[1]:
            raise pin_images.PinError(name)
        return DIGEST

    with pytest.raises(pin_images.PinError):
        pin_images.pin(paths, resolve)

    assert [path.read_text() for path in paths] == [TEXT, TEXT]


def test_what_a_registry_answers_is_a_digest_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skopeo = tmp_path / "skopeo"
    skopeo.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for script, expected in (
        (f"echo {DIGEST}", DIGEST),
        ("echo no such host >&2; exit 1", "no such host"),
        ("echo latest", "no digest"),
    ):
        skopeo.write_text(f"#!/bin/sh\n{script}\n")

        try:
            found = pin_images.from_registry(FOREIGN[0])
        except pin_images.PinError as error:
            found = str(error)

        assert expected in found


def test_every_image_that_the_files_name_is_found() -> None:
    named = {name for path in pin_images.files() for name in pin_images.images_of(path.read_text())}

    assert any(name.startswith("python:") for name in named)
    for path in compose_paths(EVERYTHING):
        for name in re.findall(r"^ +image: (\S+)", path.read_text(), re.MULTILINE):
            assert name.startswith("sluicegate-") or name.partition("@")[0] in named


@pytest.mark.parametrize("path", sbom.dockerfiles(), ids=lambda path: path.stem)
def test_a_list_holds_what_an_image_keeps_and_nothing_that_built_it(path: Path) -> None:
    packages = re.findall(r"^([\w.-]+)==", sbom.packages_of(path), re.MULTILINE)
    hashed = re.findall(r"--hash=sha256:\w{64}", sbom.packages_of(path))

    assert "msgspec" in packages
    assert not {"hatchling", "editables", "pathspec", "pip"} & set(packages)
    assert len(hashed) >= len(packages)
