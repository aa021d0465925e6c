"""Counts packages, imports, shared class names and module docstrings, and limits some of them."""

import ast
from collections.abc import Iterable, Iterator

import msgspec

from tools.sources import SOURCES, Module, Problem

QUESTION_WORDS = frozenset(
    {"How", "What", "When", "Where", "Whether", "Which", "Who", "Whose", "Why"}
)
"""Words with which a module docstring must not begin, because it must be a sentence with a verb."""
DESCRIBED_TREES = (*SOURCES, "loadtests", "testing", "tools", "training")
"""The trees whose module docstrings are checked."""
MAX_TOP_MODULES = {"gateway": 5}
"""The most modules directly in a package, except `__init__` and subpackages."""


class Structure(msgspec.Struct, frozen=True, kw_only=True):
    """Holds statistics about the structure of the product."""

    top_modules: int
    """Modules directly in `gateway`, without `__init__`."""
    packages: int
    package_arrows: int
    """Distinct imports between the subpackages and modules directly in `gateway` and `backends`."""
    module_arrows: int
    """Distinct imports between modules."""
    shared_class_names: int
    questions: int
    """Modules outside of tests whose docstring begins with a question word."""
    whats: int
    """Modules whose docstring begins with `What`."""
    largest_constructor: int
    """The most arguments of an `__init__`, without `self`."""
    largest_constructor_of: str


def measure_structure(modules: list[Module]) -> Structure:
    """Return statistics about the structure of the product."""
    sources = [module for module in modules if module.path.split("/")[0] in SOURCES]
    names = {_name(module) for module in sources}
    arrows = {arrow for module in sources for arrow in _imports(module, names)}
    between = {(_top(a), _top(b)) for a, b in arrows if _top(a) != _top(b)}
    words = [_first_word(module) for module in modules if not module.is_test]
    largest, owner = max(_constructors(sources), default=(0, "none"))
    return Structure(
        top_modules=len(_top_modules("gateway", sources)),
        packages=sum(module.path.endswith("/__init__.py") for module in sources),
        package_arrows=len(between),
        module_arrows=len(arrows),
        shared_class_names=sum(len(shared_names(tree, sources)) for tree in SOURCES),
        questions=sum(word in QUESTION_WORDS for word in words),
        whats=words.count("What"),
        largest_constructor=largest,
        largest_constructor_of=owner,
    )


def check_structure(modules: list[Module]) -> Iterator[Problem]:
    """Yield docstrings that begin with a question word, shared class names, crowded packages."""
    for module in modules:
        word = _first_word(module)
        if module.path.split("/")[0] in DESCRIBED_TREES and word in QUESTION_WORDS:
            text = f"the docstring begins with `{word}`: begin with a verb, as in `Reads ...`"
            yield Problem(path=module.path, line=1, text=text)
    for tree in SOURCES:
        for name, places in shared_names(tree, modules).items():
            text = f"`{name}` is also a class in {', '.join(places[1:])}: rename one"
            yield Problem(path=places[0], line=1, text=text)
    for tree, most in MAX_TOP_MODULES.items():
        found = _top_modules(tree, modules)
        if len(found) > most:
            text = f"{len(found)} modules at the top ({', '.join(found)}), over {most}"
            yield Problem(path=tree, line=1, text=text)


def shared_names(tree: str, modules: Iterable[Module]) -> dict[str, list[str]]:
    """Return public class names that several modules below `tree` define, with their paths."""
    places: dict[str, list[str]] = {}
    for module in modules:
        if module.path.startswith(f"{tree}/"):
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(module.path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def _first_word(module: Module) -> str:
    return next(iter((ast.get_docstring(module.tree) or "").split()), "")


def _top_modules(tree: str, modules: Iterable[Module]) -> list[str]:
    names = [m.path.removeprefix(f"{tree}/") for m in modules if m.path.startswith(f"{tree}/")]
    return [name for name in names if "/" not in name and name != "__init__.py"]


def _name(module: Module) -> str:
    return module.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _top(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _imports(module: Module, names: set[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of this module and each module in `names` that it imports."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            # An imported name is a submodule, or is defined in the module.
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name if name in names else node.module for name in members]
        else:
            continue
        yield from ((_name(module), name) for name in found if name in names)


def _constructors(modules: Iterable[Module]) -> Iterator[tuple[int, str]]:
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                for item in node.body:
                    if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                        given = item.args
                        count = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1
                        yield count, f"{_name(module)}.{node.name}"
