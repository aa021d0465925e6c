"""Makes small repositories for tests of synchronisation, and runs its commands."""

from pathlib import Path

from click.testing import CliRunner, Result

from sluicegate.backends.cli import main

CONTENT = {
    "minilm/1/model.onnx": b"graph" * 40_000,
    "minilm/1/tokenizer.json": b"{}",
    "sentiment/1/head.npz": b"weights",
    "sentiment/2/head.npz": b"other weights",
    "sentiment/2/parts/more.npz": b"",
    "sentiment/serving.yaml": b"revisions: {1: 90, 2: 10}",
}


def write(root: Path, content: dict[str, bytes] | None = None) -> Path:
    for path, each in (CONTENT if content is None else content).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(each)
    return root


def files(root: Path) -> dict[str, bytes]:
    """Return what a backend would find in a repository."""
    found = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in sorted(found.items())
        if not any(part.startswith(".") for part in name.split("/"))
    }


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["models", *map(str, arguments)])


def push(root: Path, target: str) -> str:
    result = run("push", root, target)
    assert result.exit_code == 0, result.output
    return result.output.strip()
