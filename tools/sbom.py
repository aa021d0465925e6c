"""Writes a CycloneDX file with the Python packages of each image: `make sbom`.

The packages are the locked requirements of an image, without the packages that its Dockerfile
removes. The tool needs an environment with `cyclonedx-bom`.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "sbom"
_LOCKED = re.compile(r"pip install .*--require-hashes -r (requirements/\S+)")
_REMOVED = re.compile(r"pip uninstall --yes \\\n(.+)$", re.MULTILINE)


def dockerfiles() -> list[Path]:
    """Return the Dockerfiles of all images."""
    return sorted((ROOT / "deploy").glob("*.Dockerfile"))


def packages_of(dockerfile: Path) -> str:
    """Return the locked requirements of the packages in the image."""
    text = dockerfile.read_text()
    locked, *_ = _LOCKED.findall(text)
    removed = {name for names in _REMOVED.findall(text) for name in names.split()}
    return "".join(_without((ROOT / locked).read_text(), removed))


def _without(requirements: str, removed: set[str]) -> Iterator[str]:
    # Each part is a requirement, followed by the lines with its hashes.
    for each in re.split(r"^(?=[a-z0-9])", requirements, flags=re.MULTILINE | re.IGNORECASE):
        if each.partition("==")[0].strip() not in removed:
            yield each


def main() -> None:
    """Write `build/sbom/NAME.cdx.json` for each image."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for dockerfile in dockerfiles():
        output = OUTPUT / f"{dockerfile.stem}.cdx.json"
        command = ["-m", "cyclonedx_py", "requirements", "--output-reproducible"]
        subprocess.run(
            [sys.executable, *command, "--pyproject", str(ROOT / "pyproject.toml"),
             "--mc-type", "application", "--of", "JSON", "-o", str(output), "-"],
            input=packages_of(dockerfile), text=True, check=True, cwd=ROOT,
        )  # fmt: skip
        print(output.relative_to(ROOT))


if __name__ == "__main__":
    main()
