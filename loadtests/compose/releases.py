"""Builds the project's images of a commit and of the working tree, each under tags of its own."""

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from loadtests.arena.images import ROOT, build_own, own_images
from loadtests.arena.podman import HOME, PodmanError, run

_TOOLS = "cc gcc g++ clang ld as make cmake cargo pip pip3 uv git curl"
_NO_PIP = "import importlib.util as u; raise SystemExit(u.find_spec('pip') is not None)"


class Release:
    """Names the images of one version by those that compose.yaml names."""

    def __init__(self, name: str) -> None:
        self._tag = f"check-{name}"

    def image(self, named: str) -> str:
        """Return this version of an image of the project."""
        return f"{named.rpartition(':')[0]}:{self._tag}"

    def build(self, ref: str) -> None:
        """Build every image from a commit, or from the working tree where `ref` is empty.

        Raises:
            PodmanError: the commit cannot be read, or an image cannot be built.
        """
        with tempfile.TemporaryDirectory(dir=HOME) as folder:
            sources = _checked_out(ref, Path(folder)) if ref else ROOT
            for image in own_images(sources):
                print(f"building {self.image(image)} of {ref or 'the working tree'}", flush=True)
                build_own(image, sources=sources, tag=self.image(image))

    def remove(self) -> None:
        """Remove the images that are there."""
        for image in own_images():
            run("rmi", "--force", self.image(image), check=False)


def tools_in(image: str) -> Iterator[str]:
    """Yield what an image holds that builds or installs something."""
    fixed = ("run", "--rm", "--network=none", "--read-only", "--entrypoint")
    found = run(*fixed, "sh", image, "-c", f"command -v {_TOOLS} || true")
    yield from found.split()
    try:
        run(*fixed, "python", image, "-c", _NO_PIP)
    except PodmanError:
        yield "pip as a package"


def _checked_out(ref: str, folder: Path) -> Path:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", ref],  # noqa: S607
        check=False,
        capture_output=True,
    )
    if done.returncode:
        raise PodmanError(f"git archive {ref}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder
