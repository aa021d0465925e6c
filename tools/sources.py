"""Reads and parses the Python sources of the project."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

SOURCES = ("gateway", "backends", "sluicegate", "bulk")
TREES = (*SOURCES, "loadtests", "testing", "tools", "training", "tests")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Problem(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Describes the violation of a rule, and its place."""

    path: str
    line: int
    text: str


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a parsed source file.

    `path` is relative to the project. `nodes` holds all nodes of the syntax tree.
    """

    path: str
    source: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]

    @property
    def lines(self) -> list[str]:
        """The lines of the source."""
        return self.source.splitlines()

    @property
    def is_test(self) -> bool:
        """Whether the file is in `tests`."""
        return self.path.startswith("tests/")


def read_modules(root: Path, trees: Iterable[str] = TREES) -> list[Module]:
    """Return all Python files below `trees`, parsed."""
    modules = []
    for tree in trees:
        for path in sorted((root / tree).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            relative = path.relative_to(root).as_posix()
            modules.append(parse(relative, source))
    return modules


def parse(path: str, source: str) -> Module:
    """Return the parsed module of `source`. Its tree is walked once for all checks."""
    tree = ast.parse(source, path)
    return Module(path=path, source=source, tree=tree, nodes=tuple(ast.walk(tree)))


def functions(module: Module) -> Iterator[Function]:
    """Yield every function and method of `module`, including nested ones."""
    for node in module.nodes:
        if isinstance(node, Function):
            yield node


def function_lines(function: Function) -> int:
    """Return the number of lines of `function`, without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def is_typed(function: Function) -> bool:
    """Return whether all parameters except `self` and `cls`, and the result, are annotated."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    if named and named[0].arg in {"self", "cls"}:
        named = named[1:]
    named += [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return function.returns is not None and all(a.annotation is not None for a in named)
