"""Prints the changes that the publication of a configuration document would make."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

_MISSING = object()
_LONGEST = 400


def print_difference(difference: Mapping[str, Any]) -> None:
    """Print the changed fields, and then the affected models, limits, prices and tenants."""
    for change in difference["changes"]:
        print_field_change(change)
    if omitted := difference["omitted"]:
        click.echo(f"... and {omitted} more fields")
    if not difference["changes"]:
        click.echo("nothing would change")
        return
    models = difference["models"]
    signs = {"added": "+", "removed": "-", "changed": "~"}
    _print_list(
        "models", [f"{sign}{name}" for kind, sign in signs.items() for name in models[kind]]
    )
    _print_list("limits", difference["limits"])
    _print_list("prices", difference["prices"])
    _print_tenants("tenants whose limits change", difference["tenants_by_limits"])
    _print_tenants(
        "tenants with usage this month whose prices change", difference["tenants_by_prices"]
    )


def print_recounts(guards: Mapping[str, Any] | None) -> None:
    """Print what changed guards would have decided about sampled texts."""
    if guards is None:
        click.echo("sampled decisions of guards: unknown, because the cache Redis is unreachable")
    for name, counted in (guards or {}).items():
        since = ""
        if counted["since"] is not None:
            since = f" since {datetime.fromtimestamp(counted['since'], UTC):%Y-%m-%d %H:%M} UTC"
        click.echo(
            f"guard {name}: {counted['changed']} of {counted['decisions']} sampled verdicts"
            f"{since} would change"
        )
        for verdict, before in counted["before"].items():
            click.echo(f"  {verdict}: {before} -> {counted['after'][verdict]}")
        for detector, found in counted["detectors"].items():
            click.echo(f"  found by {detector}: {found['before']} -> {found['after']}")
        if counted["unknown"]:
            click.echo(f"  the verdicts about {counted['unknown']} more are unknown")
        if counted["uncounted"]:
            click.echo(f"  not counted: {', '.join(counted['uncounted'])}: try the guard on texts")


def print_field_change(change: Mapping[str, Any]) -> None:
    """Print a changed field. `+` marks a new field, `-` a removed field, `~` a changed value."""
    before, after = change.get("from", _MISSING), change.get("to", _MISSING)
    if before is _MISSING:
        click.echo(f"+ {change['path']}: {_text(after)}")
    elif after is _MISSING:
        click.echo(f"- {change['path']}: {_text(before)}")
    else:
        click.echo(f"~ {change['path']}: {_text(before)} -> {_text(after)}")


def _print_list(name: str, values: list[str]) -> None:
    if values:
        click.echo(f"{name}: {', '.join(values)}")


def _print_tenants(name: str, counted: Mapping[str, Any] | None) -> None:
    if counted is None:
        click.echo(f"{name}: unknown, because the ledger cannot be reached")
    elif counted["count"]:
        more = counted["count"] - len(counted["first"])
        rest = f", and {more} more" if more else ""
        click.echo(f"{name}: {counted['count']} ({', '.join(counted['first'])}{rest})")


def _text(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
