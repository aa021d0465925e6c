"""The pages for operators have every command, exit code and route, and name real metrics."""

import ast
import re
from collections.abc import Iterator

from sluicegate.bulk.ray_stage import sluicegate_stage
from sluicegate.gateway.cli.examples import all_commands
from sluicegate.gateway.cli.root import main
from sluicegate.gateway.supervisor.errors import ExitCode
from tests.docs.tables import ROOT, page, rows
from tools.reference.metrics_page import declared_metrics

PAGE = page("docs/operations/commands.md")
_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_METRIC = re.compile(r"`(sluicegate_[a-z_]+)(\{[^}`]*\})?`")


def routes(folder: str) -> Iterator[str]:
    """Yield the routes that the decorators in `folder` declare, as `GET /path/{name}`."""
    for path in sorted((ROOT / folder).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield from _routes(tree, "")
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                yield from _routes(node, _prefix(node))


def _prefix(controller: ast.ClassDef) -> str:
    values = (n.value for n in controller.body if isinstance(n, ast.Assign) and _name(n) == "path")
    return str(next((v.value for v in values if isinstance(v, ast.Constant)), ""))


def _name(assignment: ast.Assign) -> str:
    return ast.unparse(assignment.targets[0])


def _routes(body: ast.Module | ast.ClassDef, prefix: str) -> Iterator[str]:
    for node in body.body:
        for made in getattr(node, "decorator_list", []):
            if isinstance(made, ast.Call) and made.args and isinstance(made.args[0], ast.Constant):
                verb, path = ast.unparse(made.func), f"{prefix}{made.args[0].value!s}"
                if verb in {"get", "post", "put", "delete"}:
                    plain = re.sub(r":\w+}", "}", path)
                    yield f"{verb.upper()} {plain.rstrip('/')}"


def test_no_page_names_a_metric_or_label_that_does_not_exist() -> None:
    declared = declared_metrics()
    known = {name: set(metric.labels) for name, metric in declared.items()}

    found = [match for path in _PAGES for match in _METRIC.findall(path.read_text("utf-8"))]
    named = [match for match in found if match[0] != sluicegate_stage.__name__]

    assert len({name for name, _ in named}) >= len(known)
    for name, selector in named:
        metric = name if name in known else re.sub(r"_(bucket|sum|count)$", "", name)
        assert set(re.findall(r"(\w+)=", selector)) <= known[metric], name


def test_every_command_is_in_the_reference() -> None:
    told = re.findall(r"^## (.+)$", page("docs/reference/commands.md"), re.MULTILINE)

    assert {f"sluicegate {name}" for name, _ in all_commands(main)} <= set(told)


def test_every_exit_code_is_told() -> None:
    codes = {row[0] for row in rows(PAGE)}

    assert {str(code.value) for code in ExitCode} <= codes


def test_every_route_of_customers_is_told_somewhere() -> None:
    told = page("docs/api.md") + page("docs/operations/watch.md")
    paths = {route.partition(" ")[2] for route in routes("gateway/api")}

    # What is under /docs/ is part of the page of the API.
    assert [each for each in paths if not each.startswith("/docs/") and each not in told] == []
