"""Builds the project's images, unmodified, on base images made from packages of Debian.

A machine that can pull images from a registry does not need these base images. A build mounts this
machine's settings for apt and pip, which name the package indexes. No image keeps these settings.
"""

import configparser
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from loadtests.containers.podman import HOME, PodmanError, run
from testing.compose_files import OBSERVED, ROOT, merged

PRESENT, FORMER = "present", "former"
"""Tags of the images of the working tree, and of the images of the former release."""
_BASES = Path(__file__).parent / "bases"
_SUITE = "bookworm"
_MINIMAL = "localhost/debian:bookworm-slim"
_BUILD = 1800.0
_APT = (Path("/etc/apt"), Path("/usr/share/keyrings"), Path("/etc/ssl/certs"))
_TOOLS = "cc gcc g++ clang ld as make cmake cargo pip pip3 uv git curl"
_NO_PIP = "import importlib.util as u; raise SystemExit(u.find_spec('pip') is not None)"


def build(tag: str) -> None:
    """Build the missing base images, and every image of the project, except images for GPUs.

    The images with the tag `FORMER` are of the former release, or of this commit's parent if there
    is no release. Podman reuses the layers of earlier builds.

    Raises:
        PodmanError: an image cannot be built.
    """
    _build_bases()
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        sources = _former_release(Path(folder) / "sources") if tag == FORMER else ROOT
        mounts = _pip_mounts(Path(folder))
        services = merged(root=sources)["services"].values()
        builds = {each["image"]: each["build"] for each in services if "build" in each}
        for image, how in builds.items():
            name = tagged(f"localhost/{image}", tag)
            print(f"building {name}", flush=True)
            stage = [f"--target={how['target']}"] if "target" in how else []
            options = [f"--tag={name}", *stage, *mounts]
            _build(sources / how["dockerfile"], sources, options)


def _former_release(folder: Path) -> Path:
    """Check out the former release into `folder`."""
    describe = ("git", "describe", "--tags", "--abbrev=0", "--match=v*", "HEAD~1")
    release = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    clone = ("git", "clone", "--quiet", "--shared", ROOT, folder)
    subprocess.run(clone, check=True)
    checkout = ("git", "checkout", "--quiet", release.stdout.strip() or "HEAD~1")
    subprocess.run(checkout, cwd=folder, check=True)
    return folder


def next_version(image: str, name: str) -> str:
    """Build an image again with a new label; return the name of this next version."""
    built, folder = f"localhost/next-{name}:next", HOME / "next"
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(f"FROM {image}\nLABEL version={time.time()}\n")
    run("build", "--pull=never", "--network=none", f"--tag={built}", str(folder))
    return built


def tagged(image: str, tag: str) -> str:
    """Return the name of an image with another tag."""
    return f"{image.rpartition(':')[0]}:{tag}"


def full_name(name: str) -> str:
    """Return the name of an image with its folder, which is `library` for Docker's official images.

    The name has no digest, because the local image that replaces the official image has another
    digest.
    """
    name = name.partition("@")[0]
    return name if "/" in name else f"library/{name}"


def tools_in(image: str) -> Iterator[str]:
    """Yield each program in an image that builds or installs software."""
    fixed = ("run", "--rm", "--network=none", "--read-only", "--entrypoint")
    yield from run(*fixed, "sh", image, "-c", f"command -v {_TOOLS} || true").split()
    try:
        run(*fixed, "python", image, "-c", _NO_PIP)
    except PodmanError:
        yield "pip as a package"


def _build_bases() -> None:
    """Build an image of a minimal Debian, and on it images that replace other projects' images."""
    if not run("images", "--quiet", _MINIMAL):
        with tempfile.TemporaryDirectory(dir=HOME) as folder:
            root, archive = f"{folder}/root", f"{folder}/minimal.tar"
            options = ["--variant=minbase", "--include=ca-certificates"]
            debootstrap = ["debootstrap", *options, _SUITE, root]
            subprocess.run(debootstrap, check=True, stdout=subprocess.DEVNULL)
            subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)  # noqa: S607
            run("import", archive, _MINIMAL, timeout=_BUILD)
    for name, image in _bases().items():
        if not run("images", "--quiet", image):
            print(f"building {image}", flush=True)
            mounts = [f"--volume={path}:{path}:O" for path in _APT if path.exists()]
            _build(_BASES / f"{name}.Dockerfile", _BASES, [f"--tag={image}", *mounts])


def _bases() -> dict[str, str]:
    """Return the images of other projects that this project names.

    Keys are their local replacements.
    """
    services = merged(OBSERVED)["services"].values()
    named = {service["image"] for service in services if "build" not in service}
    for file in (ROOT / "deploy").glob("*.Dockerfile"):
        lines = file.read_text().splitlines()
        named |= {line.split()[1] for line in lines if line.startswith("FROM ") and ":" in line}
    kinds = [path.stem for path in _BASES.glob("*.Dockerfile")]
    return {kind: f"docker.io/{full_name(n)}" for kind in kinds for n in sorted(named) if kind in n}


def _build(file: Path, context: Path, options: list[str]) -> None:
    fixed = ["--pull=never", "--network=host", f"--file={file}"]
    run("build", *fixed, *options, str(context), timeout=_BUILD)


def _pip_mounts(folder: Path) -> list[str]:
    """Return the build's mounts that give pip this machine's package settings."""
    settings = configparser.ConfigParser()
    home = Path.home()
    settings.read(["/etc/pip.conf", home / ".pip/pip.conf", home / ".config/pip/pip.conf"])
    path = folder / "pip.conf"
    with path.open("w") as file:
        settings.write(file)
    path.chmod(0o644)
    words = path.read_text().replace("file://", "").split()
    paths = {Path(word) for word in words if word.startswith("/") and Path(word).exists()}
    paths |= {each.parent for each in paths if each.name == "simple"}
    return [
        f"--volume={path}:/etc/pip.conf:ro",
        *(f"--volume={each}:{each}:ro" for each in sorted(paths)),
    ]
