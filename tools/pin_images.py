"""Pins the images in compose.yaml, its overrides and the Dockerfiles to their current digests.

    python -m tools.pin_images            # asks the registries, with skopeo
    python -m tools.pin_images --check    # only lists images that are not pinned

An image keeps its tag for readers, as in `redis:8.2.1-alpine@sha256:...`, but container engines use
only the digest. An existing digest is replaced by the current digest of the tag.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_NAMED = re.compile(
    r"^(?P<before>\s*image: |FROM )(?P<name>[\w./-]+(?::\d+/[\w./-]+)?:[\w.-]+)(?:@sha256:\w+)?",
    re.MULTILINE,
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OWN = "sluicegate-"


class PinError(Exception):
    """A digest could not be determined; no file was changed."""


def files() -> list[Path]:
    """Return the files that name images."""
    deploy = ROOT / "deploy"
    overrides, builds = deploy.glob("compose/*.yaml"), deploy.glob("*.Dockerfile")
    return [ROOT / "compose.yaml", *sorted(overrides), *sorted(builds)]


def images_of(text: str) -> Iterator[str]:
    """Yield the external images in a file, with their tags."""
    for match in _NAMED.finditer(text):
        if not match["name"].startswith(_OWN):
            yield match["name"]


def pinned(text: str, digests: dict[str, str]) -> str:
    """Return `text` with the digest of each image after its tag."""

    def with_digest(match: re.Match[str]) -> str:
        name = match["name"]
        return f"{match['before']}{name}@{digests[name]}" if name in digests else match[0]

    return _NAMED.sub(with_digest, text)


def pin(paths: Iterable[Path], resolve: Callable[[str], str]) -> dict[str, str]:
    """Pin all images in the files, or none; return the digests.

    Raises:
        PinError: a digest cannot be determined.
    """
    texts = {path: path.read_text() for path in paths}
    names = sorted({name for text in texts.values() for name in images_of(text)})
    digests = {name: resolve(name) for name in names}
    for path, text in texts.items():
        path.write_text(pinned(text, digests))
    return digests


def from_registry(name: str) -> str:
    """Return the digest of a tag from its registry: the digest of the index of all platforms.

    Raises:
        PinError: skopeo is missing, or the registry returns no digest.
    """
    if shutil.which("skopeo") is None:
        raise PinError("`skopeo` is missing; run `apt-get install skopeo` or `brew install skopeo`")
    done = subprocess.run(
        ["skopeo", "inspect", "--no-tags", "--format", "{{.Digest}}", f"docker://{name}"],  # noqa: S607
        check=False,
        capture_output=True,
        text=True,
    )
    digest = done.stdout.strip()
    if done.returncode or not _DIGEST.fullmatch(digest):
        raise PinError(f"{name}: {done.stderr.strip() or 'the registry returned no digest'}")
    return digest


def main(arguments: list[str]) -> None:
    """Pin the images, or with `--check` list images that are not pinned."""
    if arguments == ["--check"]:
        loose = [
            f"{path.relative_to(ROOT)}: {match['name']}"
            for path in files()
            for match in _NAMED.finditer(path.read_text())
            if "@" not in match[0] and not match["name"].startswith(_OWN)
        ]
        sys.exit(
            "\n".join(
                [
                    "these images are not pinned to a digest; run `python -m tools.pin_images`:",
                    *loose,
                ]
            )
            if loose
            else 0
        )
    try:
        digests = pin(files(), from_registry)
    except PinError as error:
        sys.exit(f"nothing was changed: {error}")
    print("\n".join(f"{name} {digest}" for name, digest in digests.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
