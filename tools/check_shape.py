"""Checks the shape of the code: sizes, annotations, broad exception handlers, test habits.

`python -m tools.check_shape [ROOT]` prints statistics and every problem, and exits with 1 if there
is a problem. ROOT is the project to check, by default the current folder.
"""

import ast
import re
import statistics
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from tools.sources import (
    SOURCES,
    Module,
    Problem,
    function_lines,
    functions,
    is_typed,
    read_modules,
)
from tools.structure import Structure, check_structure, measure_structure

MAX_MODULE_LINES = 600
LONG_MODULE_LINES = 300
MAX_FUNCTION_LINES = 60
MAX_FUNCTION_P90 = 30

# Lock files and scripts must work with any package index. The brackets keep this line from
# matching.
PACKAGE_HOSTS = re.compile(
    r"pypi[.]org|files[.]pythonhosted|registry[.]npmjs|deb[.]debian[.]org|--(extra-)?index[-]url"
)
# A comment that only addresses a tool.
_MARKER = re.compile(
    r"noqa(: ?[A-Z]+\d+(, ?[A-Z]+\d+)*)?|type: ignore(\[[\w, -]+\])?|pragma: no cover"
)
_NOT_OURS = {"node_modules", "__pycache__", "build", "dist", "models"}
_TEXT = {".py", ".md", ".txt", ".in", ".toml", ".yaml", ".yml", ".sh", ".conf", ".json", ".html"}
_TEXT_NAMES = {"Makefile", "run", "LICENSE"}


def check_sizes(modules: Iterable[Module]) -> Iterator[Problem]:
    """Yield modules and functions that exceed the size limits."""
    for module in modules:
        if len(module.lines) > MAX_MODULE_LINES:
            text = f"the module has {len(module.lines)} lines, over {MAX_MODULE_LINES}: split it"
            yield Problem(path=module.path, line=1, text=text)
        for function in functions(module):
            lines = function_lines(function)
            if lines > MAX_FUNCTION_LINES:
                text = f"`{function.name}` has {lines} lines, over {MAX_FUNCTION_LINES}: split it"
                yield Problem(path=module.path, line=function.lineno, text=text)


def check_types(modules: Iterable[Module]) -> Iterator[Problem]:
    """Yield functions with an unannotated parameter or result."""
    for module in modules:
        for function in functions(module):
            if not is_typed(function):
                text = f"`{function.name}` lacks an annotation"
                yield Problem(path=module.path, line=function.lineno, text=text)


def broad_handlers(module: Module) -> Iterator[int]:
    """Yield the lines that catch or suppress every exception."""
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler) and _names_everything(node.type):
            yield node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            yield from (node.lineno for argument in node.args if _names_everything(argument))


def _names_everything(node: ast.expr | None) -> bool:
    if node is None:
        return True
    names = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(ast.unparse(name) in {"Exception", "BaseException"} for name in names)


def check_handlers(modules: Iterable[Module]) -> Iterator[Problem]:
    """Yield broad handlers without a comment on their line or an adjacent line."""
    for module in modules:
        lines = module.lines
        for number in broad_handlers(module):
            around = lines[max(number - 2, 0) : number + 1]
            if not any(_has_reason(line) for line in around):
                text = "a handler of every exception needs a comment that says why"
                yield Problem(path=module.path, line=number, text=text)


def _has_reason(line: str) -> bool:
    comment = line.partition("#")[2].strip()
    return bool(comment) and not _MARKER.fullmatch(comment)


def check_tests(modules: Iterable[Module]) -> Iterator[Problem]:
    """Yield mocks and sleeps in tests."""
    for module in modules:
        if not module.is_test:
            continue
        for node in module.nodes:
            text = _test_habit(node)
            if text:
                yield Problem(path=module.path, line=getattr(node, "lineno", 1), text=text)


def _test_habit(node: ast.AST) -> str:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in node.names]
        origin = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if "mock" in (".".join([origin, *names])).split("."):
            return "a mock: write a fake and prove it in tests/contract"
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        first = node.args[0] if node.args else None
        # Zero only yields to the event loop, and a name is the interval of a poll.
        waits = isinstance(first, ast.Constant) and first.value != 0
        if called == "time.sleep" or (called in {"asyncio.sleep", "anyio.sleep"} and waits):
            return f"`{called}` in a test: wait for an event or poll with a deadline"
    return ""


def check_hosts(root: Path) -> Iterator[Problem]:
    """Yield lines that name a package host, because each machine configures its own."""
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        hidden = any(p.startswith(".") and p not in {".ci", ".gitignore"} for p in relative.parts)
        if hidden or _NOT_OURS & set(relative.parts) or not path.is_file():
            continue
        if path.suffix not in _TEXT and path.name not in _TEXT_NAMES:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if relative.as_posix() == "tools/check_shape.py" or not PACKAGE_HOSTS.search(text):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            found = PACKAGE_HOSTS.search(line)
            if found:
                message = f"names the package host or option `{found.group()}`"
                yield Problem(path=relative.as_posix(), line=number, text=message)


def check_version(root: Path) -> Iterator[Problem]:
    """Yield a difference between the project's version and the newest in the changelog."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    version = project["project"]["version"]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)
    newest = found.group(1) if found else "none"
    if newest != version:
        text = f"the newest version is `{newest}`, but pyproject.toml has `{version}`"
        yield Problem(path="CHANGELOG.md", line=1, text=text)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Holds statistics of the product's sources."""

    modules: int
    lines: int
    longest_module: int
    long_modules: int
    """Modules with more than 300 lines."""
    functions: int
    median: float
    p90: float
    longest_function: int
    typed_share: float
    broad_handlers: int
    test_lines: int


def measure(modules: list[Module]) -> Shape:
    """Return the statistics of the product, and the number of lines of its tests."""
    sources = [m for m in modules if m.path.split("/")[0] in SOURCES]
    sizes = [function_lines(f) for m in sources for f in functions(m)] or [0]
    typed = [is_typed(f) for m in sources for f in functions(m)] or [True]
    return Shape(
        modules=len(sources),
        lines=sum(len(m.lines) for m in sources),
        longest_module=max((len(m.lines) for m in sources), default=0),
        long_modules=sum(len(m.lines) > LONG_MODULE_LINES for m in sources),
        functions=len(sizes),
        median=statistics.median(sizes),
        p90=statistics.quantiles([*sizes, sizes[-1]], n=10, method="inclusive")[8],
        longest_function=max(sizes),
        typed_share=sum(typed) / len(typed),
        broad_handlers=sum(1 for m in sources for _ in broad_handlers(m)),
        test_lines=sum(len(m.lines) for m in modules if m.is_test),
    )


def check(root: Path) -> tuple[Shape, Structure, list[Problem]]:
    """Return the statistics of the project at `root`, and its problems."""
    modules = read_modules(root)
    shape = measure(modules)
    problems = [
        *check_sizes(modules),
        *check_types(modules),
        *check_handlers(modules),
        *check_structure(modules),
        *check_tests(modules),
        *check_hosts(root),
        *check_version(root),
    ]
    if shape.p90 > MAX_FUNCTION_P90:
        text = (
            f"the 90th percentile of function lengths is {shape.p90:.0f}, over {MAX_FUNCTION_P90}"
        )
        problems.append(Problem(path=".", line=1, text=text))
    return shape, measure_structure(modules), sorted(problems)


def main(arguments: Sequence[str] = ()) -> int:
    """Print the statistics and problems of a project, by default in the current folder."""
    shape, structure, problems = check(Path(*arguments[:1]).resolve())
    print(
        f"shape: {shape.modules} modules, {shape.lines} product lines, "
        f"longest {shape.longest_module}, over 300 lines {shape.long_modules}; "
        f"{shape.functions} functions, median {shape.median:.0f}, p90 {shape.p90:.0f}, "
        f"longest {shape.longest_function}; typed {shape.typed_share:.0%}; "
        f"broad handlers {shape.broad_handlers}; "
        f"test lines per source line {shape.test_lines / max(shape.lines, 1):.2f}"
    )
    print(
        f"structure: {structure.top_modules} modules at the top of gateway/, "
        f"{structure.packages} packages, {structure.package_arrows} import arrows between those "
        f"at the top, {structure.module_arrows} between modules; "
        f"{structure.shared_class_names} public class names shared within a package; "
        f"{structure.questions} modules that begin with a question word, "
        f"{structure.whats} of them with `What`; "
        f"largest constructor {structure.largest_constructor} arguments "
        f"({structure.largest_constructor_of})"
    )
    for problem in problems:
        print(f"{problem.path}:{problem.line}: {problem.text}")
    if problems:
        print(f"shape: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
