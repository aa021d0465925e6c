"""Builds the project's images, unmodified, on base images made from packages of Debian.

A machine with a registry of images needs none of this; the arena does it to run without one.
Package indexes are those that this machine is configured for: its settings for apt and pip are
mounted during a build, and become part of no image.
"""

import configparser
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from loadtests.arena.podman import HOME, run
from loadtests.machine import this_machine
from testing.compose_files import OBSERVED, merged

ROOT = Path(__file__).parents[2]
_BASES = Path(__file__).parent / "bases"
_COMMIT = HOME / "commit"
_SUITE = "bookworm"
_MINIMAL = "localhost/debian:bookworm-slim"
_BUILD = 1800.0
_APT = Path("/etc/apt")
_KEYRINGS = Path("/usr/share/keyrings")


def build(*, anew: bool) -> None:
    """Build the missing base images, and the project's own images from the current sources.

    With `anew`, the bases are built again, too.
    """
    build_bases(anew=anew)
    for image in own_images():
        print(f"building {image}")
        build_own(image)
    _COMMIT.write_text(this_machine().commit)


def build_bases(*, anew: bool) -> None:
    """Build the missing base images, or with `anew` all of them."""
    if anew or not _is_there(_MINIMAL):
        _import_minimal()
    for name, image in bases().items():
        if anew or not _is_there(image):
            print(f"building {image}")
            file = _BASES / f"{name}.Dockerfile"
            _build(file, _BASES, [f"--tag={image}", *_apt_mounts()])


def build_own(image: str, *, sources: Path = ROOT, tag: str = "") -> None:
    """Build an image of the project from the sources in a folder, by default with its own name."""
    dockerfile, target = own_images(sources)[image]
    stage = [f"--target={target}"] if target else []
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        mounts = _pip_mounts(Path(folder))
        _build(sources / dockerfile, sources, [f"--tag={tag or image}", *stage, *mounts])


def built_from() -> str:
    """Return the commit from which the present images were built."""
    return _COMMIT.read_text() if _COMMIT.exists() else "unknown"


def bases() -> dict[str, str]:
    """Return the foreign images that the project names, by their local stand-ins."""
    services = merged(OBSERVED)["services"].values()
    named = {service["image"] for service in services if "build" not in service}
    for file in (ROOT / "deploy").glob("*.Dockerfile"):
        lines = file.read_text().splitlines()
        named |= {line.split()[1] for line in lines if line.startswith("FROM ") and ":" in line}
    kinds = [path.stem for path in _BASES.glob("*.Dockerfile")]
    return {kind: f"docker.io/{full_name(n)}" for kind in kinds for n in sorted(named) if kind in n}


def own_images(sources: Path = ROOT) -> dict[str, tuple[str, str]]:
    """Return the file and the stage of each image of the project, without those for GPUs."""
    services = merged(root=sources)["services"].values()
    return {
        f"localhost/{service['image']}": (
            service["build"]["dockerfile"],
            service["build"].get("target", ""),
        )
        for service in services
        if "build" in service and "-gpu:" not in service["image"]
    }


def full_name(name: str) -> str:
    """Return the name of an image with its folder, which is `library` for Docker's own images.

    The digest is left out, because a stand-in has another one.
    """
    name = name.partition("@")[0]
    return name if "/" in name else f"library/{name}"


def _is_there(image: str) -> bool:
    return bool(run("images", "--quiet", image))


def _build(file: Path, context: Path, options: list[str]) -> None:
    fixed = ["--pull=never", "--network=host", f"--file={file}"]
    run("build", *fixed, *options, str(context), timeout=_BUILD)


def _import_minimal() -> None:
    """Create an image of a minimal Debian (half a minute)."""
    print(f"making {_MINIMAL} with debootstrap")
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        options = ["--variant=minbase", "--include=ca-certificates"]
        subprocess.run(
            ["debootstrap", *options, _SUITE, folder],  # noqa: S607 - wherever it is installed
            check=True,
            stdout=subprocess.DEVNULL,
        )
        archive = HOME / "minimal.tar"
        subprocess.run(["tar", "-C", folder, "-cf", archive, "."], check=True)  # noqa: S607
    run("import", str(archive), _MINIMAL, timeout=_BUILD)
    archive.unlink()


def _apt_mounts() -> Iterator[str]:
    for path in (_APT, _KEYRINGS, Path("/etc/ssl/certs")):
        if path.exists():
            # `O`: packages may write there, and what they write is forgotten.
            yield f"--volume={path}:{path}:O"


def _pip_mounts(folder: Path) -> list[str]:
    """Return the mounts that give pip in a build the package settings of this machine."""
    settings = configparser.ConfigParser()
    home = Path.home()
    settings.read(["/etc/pip.conf", home / ".pip/pip.conf", home / ".config/pip/pip.conf"])
    merged = folder / "pip.conf"
    with merged.open("w") as file:
        settings.write(file)
    merged.chmod(0o644)
    words = merged.read_text().replace("file://", "").split()
    paths = {Path(word) for word in words if word.startswith("/") and Path(word).exists()}
    if any(path.name == "simple" for path in paths):
        paths |= {path.parent for path in paths if path.name == "simple"}
    found = [f"--volume={merged}:/etc/pip.conf:ro"]
    return found + [f"--volume={path}:{path}:ro" for path in sorted(paths)]
