"""Implements `sluicegate models split`, `shadow` and `rollback`: revisions on all backends."""

from typing import Any

import click

from gateway.cli.admin_client import AdminClient, admin_options, print_change, print_json, quoted

# Every backend opens the revisions to check them, and again to serve them.
_TIMEOUT = 240.0
_NAME = click.argument("name")
_DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Check the change on every backend, and change nothing."
)


@click.command()
@_NAME
@click.argument("weights", nargs=-1, metavar="[REVISION=WEIGHT]...")
@click.option("--reset", is_flag=True, help="Serve the model as its folder says.")
@_DRY_RUN
@admin_options
def split(
    *,
    name: str,
    weights: tuple[str, ...],
    reset: bool,
    dry_run: bool,
    client: AdminClient,
    as_json: bool,
) -> None:
    """Share the items of a model between revisions, or show what each revision did.

    `split sentiment 1=90 2=10` shares by weight once every backend has checked the revisions, and
    `split sentiment` shows items, errors, latency, labels, agreement and cost of each.
    """
    path = f"/admin/models/{quoted(name)}"
    if reset and weights:
        raise click.UsageError("give weights or `--reset`, not both")
    if reset:
        _change(client, "DELETE", f"{path}/split", None, dry_run=dry_run, as_json=as_json)
    elif weights:
        body = {"revisions": _weights(weights)}
        _change(client, "PUT", f"{path}/split", body, dry_run=dry_run, as_json=as_json)
    else:
        answer = client.request("GET", f"{path}/arms")
        if as_json:
            print_json(answer)
        else:
            _show(answer)


@click.command()
@_NAME
@click.argument("revision", required=False)
@click.option("--share", type=float, default=100.0, show_default=True, help="Per cent of items.")
@click.option("--tolerance", type=float, default=0.01, show_default=True)
@click.option("--off", is_flag=True, help="Mirror items no more.")
@_DRY_RUN
@admin_options
def shadow(
    *,
    name: str,
    revision: str | None,
    share: float,
    tolerance: float,
    off: bool,
    dry_run: bool,
    client: AdminClient,
    as_json: bool,
) -> None:
    """Mirror a share of a model's items to a revision, whose answers are compared and not given."""
    path = f"/admin/models/{quoted(name)}/shadow"
    if (revision is None) != off:
        raise click.UsageError("name a revision, or give `--off`")
    if off:
        _change(client, "DELETE", path, None, dry_run=dry_run, as_json=as_json)
    else:
        body = {"revision": revision, "share": share, "tolerance": tolerance}
        _change(client, "PUT", path, body, dry_run=dry_run, as_json=as_json)


@click.command()
@_NAME
@_DRY_RUN
@admin_options
def rollback(*, name: str, dry_run: bool, client: AdminClient, as_json: bool) -> None:
    """Undo the last change of a model's revisions. A second call changes nothing."""
    path = f"/admin/models/{quoted(name)}/rollback"
    _change(client, "POST", path, None, dry_run=dry_run, as_json=as_json)


def _change(
    client: AdminClient, method: str, path: str, body: object, *, dry_run: bool, as_json: bool
) -> None:
    """Make a change, and print what became of it; exit with 1 where not all follow it yet."""
    query = {"dry_run": "true"} if dry_run else None
    answer = client.request(method, path, query=query, body=body, timeout=_TIMEOUT)
    if dry_run:
        # It is in force nowhere, and nothing has failed.
        answer |= {"live": True}
    verb = "could be served" if dry_run else "is served"
    head = f"`{answer['model']}` {verb} {_described(answer['plan'])}"
    print_change(answer, as_json=as_json, head=head, more=_show_away)


def _described(plan: dict[str, Any] | None) -> str:
    if plan is None:
        return "as its folder says"
    shares = " ".join(f"{arm}={weight}" for arm, weight in (plan["revisions"] or {}).items())
    mirrored = plan["shadow"]
    if mirrored is None:
        return f"by {shares}"
    return f"by {shares}, and {mirrored['share']:g} % of the items go to {mirrored['revision']} too"


def _show_away(answer: Any) -> None:
    for backend, reason in answer["away"].items():
        click.echo(f"{backend}: was not asked, and follows when it returns: {reason}", err=True)


def _show(answer: dict[str, Any]) -> None:
    said = "by the operators' plan" if answer["planned"] else "as its folder says"
    click.echo(
        f"{answer['model']} {answer['revision']}: {said}, on {', '.join(answer['backends'])}"
    )
    for backend in answer["others"]:
        click.echo(f"{backend}: serves it differently", err=True)
    _show_away(answer)
    for arm in answer["arms"]:
        _show_arm(arm)


def _show_arm(arm: dict[str, Any]) -> None:
    answers = arm["answers"]
    share = "-" if arm["share"] is None else f"{arm['share']:.1%}"
    errors = arm["failed"] / arm["items"] if arm["items"] else 0.0
    costs = ", ".join(f"{cost} {currency}" for currency, cost in arm["costs"].items())
    click.echo(
        f"revision {arm['arm']}: weight {arm['weight']} ({arm['wanted_share']:.1%}), "
        f"{arm['items']} items ({share}), {arm['hit']} hits, {errors:.2%} errors"
        f"{f', {costs}' if costs else ''}"
    )
    if answers["latency"]:
        latency = ", ".join(f"{name} {1000 * at:.1f}" for name, at in answers["latency"].items())
        click.echo(f"  latency in ms: {latency}")
    if answers["labels"]:
        labels = ", ".join(f"{label} {count}" for label, count in answers["labels"].items())
        click.echo(f"  labels: {labels}")
    for number, compared in answers["shadows"].items():
        same = "-" if compared["agreement"] is None else f"{compared['agreement']:.2%}"
        items = ", ".join(f"{count} {name}" for name, count in sorted(compared["items"].items()))
        click.echo(
            f"  shadow {number}: {items}; agreement {same}, "
            f"largest difference {compared['largest_difference']:.4g}"
        )


def _weights(given: tuple[str, ...]) -> dict[str, int]:
    """Return the weights by revision; a weight of 0 leaves a revision out."""
    found: dict[str, int] = {}
    for text in given:
        revision, equals, weight = text.partition("=")
        if not (equals and revision.isdecimal() and weight.isdecimal()) or revision in found:
            raise click.BadParameter(
                f"`{text}`: write each revision once, with a whole number, as in `1=90 2=10`"
            )
        found[revision] = int(weight)
    shares = {revision: weight for revision, weight in found.items() if weight}
    if not shares:
        raise click.BadParameter("some revision must have a weight above 0")
    return shares
