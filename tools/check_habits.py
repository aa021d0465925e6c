"""Checks rules that no linter knows: `python -m tools.check_habits` exits with 1 if one is broken.

The rules are: a handler that catches every exception has a comment that says why. A test does not
sleep. No file names a package host, because each machine configures its own host. The changelog and
the project name the same version.
"""

import ast
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

TREES = (
    *("gateway", "backends", "wire", "sluicegate", "bulk"),
    *("loadtests", "testing", "tools", "training", "tests"),
)
# The brackets keep this line from matching.
PACKAGE_HOSTS = re.compile(
    r"pypi[.]org|files[.]pythonhosted|registry[.]npmjs|deb[.]debian[.]org|--(extra-)?index[-]url"
)
# Only a file with one of these words can have a problem, so most files need not be parsed.
_WORDS = re.compile(r"\b(Base)?Exception\b|\bexcept *:|\bsleep\b")
# A comment of this form only addresses a tool, so it is not a reason.
_MARKER = re.compile(
    r"noqa(: ?[A-Z]+\d+(, ?[A-Z]+\d+)*)?|type: ignore(\[[\w, -]+\])?|pragma: no cover"
)
_SIMULATED = "tests/unit/testing/simulation/"
"""Tests whose time is virtual, so that they may sleep."""
_NOT_OURS = {"node_modules", "__pycache__", "build", "dist", "models"}
_TEXT = {".py", ".md", ".txt", ".in", ".toml", ".yaml", ".yml", ".sh", ".conf", ".json", ".html"}
_TEXT_NAMES = {"Makefile", "run", "LICENSE"}


def problems_of(path: str, source: str) -> Iterator[str]:
    """Yield the problems of the Python file at `path`, as `path:line: text`."""
    if not _WORDS.search(source):
        return
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source, path)):
        if _catches_everything(node):
            number = getattr(node, "lineno", 1)
            if not any(map(_has_reason, lines[max(number - 2, 0) : number + 1])):
                yield f"{path}:{number}: a handler of every exception needs a comment that says why"
        is_real = path.startswith("tests/") and not path.startswith(_SIMULATED)
        if is_real and _sleeps(node):
            yield f"{path}:{getattr(node, 'lineno', 1)}: wait for an event, or poll with a deadline"


def _catches_everything(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return node.type is None or _names_everything(node.type)
    if isinstance(node, ast.Call) and _last_name(node.func) == "suppress":
        return any(map(_names_everything, node.args))
    return False


def _last_name(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _names_everything(node: ast.expr) -> bool:
    names = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(ast.unparse(name) in {"Exception", "BaseException"} for name in names)


def _has_reason(line: str) -> bool:
    comment = line.partition("#")[2].strip()
    return bool(comment) and not _MARKER.fullmatch(comment)


def _sleeps(node: ast.AST) -> bool:
    """Return whether this call sleeps.

    Two kinds of calls are allowed: a sleep of zero, which only yields to the event loop, and a
    sleep of a variable's length, which is the interval of a poll.
    """
    if not isinstance(node, ast.Call) or _last_name(node.func) != "sleep":
        return False
    called = ast.unparse(node.func)
    is_constant = any(isinstance(a, ast.Constant) and a.value != 0 for a in node.args[:1])
    return called == "time.sleep" or (called in {"asyncio.sleep", "anyio.sleep"} and is_constant)


def hosts(root: Path) -> Iterator[str]:
    """Yield the lines that name a package host."""
    for path in sorted(_text_files(root)):
        text = path.read_text(encoding="utf-8", errors="replace")
        if PACKAGE_HOSTS.search(text):
            for number, line in enumerate(text.splitlines(), 1):
                if found := PACKAGE_HOSTS.search(line):
                    yield f"{path.relative_to(root).as_posix()}:{number}: names `{found.group()}`"


def _text_files(root: Path) -> Iterator[Path]:
    for folder, below, names in os.walk(root):
        below[:] = [n for n in below if n == ".ci" or not (n.startswith(".") or n in _NOT_OURS)]
        for path in (Path(folder, name) for name in names):
            if path.suffix in _TEXT or path.name in _TEXT_NAMES:
                yield path


def version_problem(root: Path) -> Iterator[str]:
    """Yield a message if the project's version is not the newest version in the changelog."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    version = project["project"]["version"]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)
    if newest is None or newest.group(1) != version:
        yield f"CHANGELOG.md:1: the newest version is not `{version}`, which pyproject.toml has"


def main(root: Path = Path()) -> int:
    """Print every problem of the project in `root`; return 1 if there is any."""
    found = [*hosts(root), *version_problem(root)]
    for tree in TREES:
        for path in sorted((root / tree).rglob("*.py")):
            found += problems_of(path.relative_to(root).as_posix(), path.read_text("utf-8"))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
