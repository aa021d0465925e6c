"""Implements `sluicegate models split`, `shadow` and `rollback`."""

from typing import Any

import click

from sluicegate.gateway.cli.admin_client import AdminClient, admin_options, print_change, print_json
from sluicegate.gateway.operations import model_plans as plans
from sluicegate.gateway.operations.declaration import Operation

# A change takes this long because every backend loads the revisions twice: first to check the
# revisions, and then to serve them.
_TIMEOUT = 240.0
_NAME = click.argument("name")
_DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Check the change on every backend, but change nothing."
)


@click.command()
@_NAME
@click.argument("weights", nargs=-1, metavar="[REVISION=WEIGHT]...")
@click.option("--reset", is_flag=True, help="Remove the plan; the model's folder decides again.")
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
    """Divide the items of a model among revisions, or show the results of each revision.

    `split sentiment 1=90 2=10` divides the items of the model `sentiment` by weight, after every
    backend has checked the revisions. `split sentiment` shows the items, errors, latency, labels,
    agreement and cost of each revision.
    """
    if reset and weights:
        raise click.UsageError("give weights or `--reset`, not both")
    if reset:
        _change(client, plans.reset_model, name, dry_run=dry_run, as_json=as_json)
    elif weights:
        body = {"revisions": _weights(weights)}
        _change(client, plans.split_model, name, body=body, dry_run=dry_run, as_json=as_json)
    else:
        answer = client.carry_out(plans.get_model_arms, name)
        if as_json:
            print_json(answer)
        else:
            _show(answer)


@click.command()
@_NAME
@click.argument("revision", required=False)
@click.option("--share", type=float, default=100.0, show_default=True, help="Percentage of items.")
@click.option(
    "--tolerance",
    type=float,
    default=0.01,
    show_default=True,
    help="The largest difference of scores that counts as equal.",
)
@click.option("--off", is_flag=True, help="Remove the shadow.")
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
    """Send copies of a model's items to a shadow revision, and compare the results.

    Callers never get the shadow's results.
    """
    if (revision is None) != off:
        raise click.UsageError("give either a revision or `--off`")
    if off:
        _change(client, plans.end_shadow, name, dry_run=dry_run, as_json=as_json)
    else:
        body = {"revision": revision, "share": share, "tolerance": tolerance}
        _change(client, plans.shadow_model, name, body=body, dry_run=dry_run, as_json=as_json)


@click.command()
@_NAME
@_DRY_RUN
@admin_options
def rollback(*, name: str, dry_run: bool, client: AdminClient, as_json: bool) -> None:
    """Undo the last change of a model's split. Running this twice does not undo two changes."""
    _change(client, plans.roll_back_model, name, dry_run=dry_run, as_json=as_json)


def _change(
    client: AdminClient,
    operation: Operation[..., Any],
    model: str,
    *,
    body: object = None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a change, and print the outcome.

    Exit with 1 if a worker or a backend does not apply the change yet.
    """
    query = {"dry_run": "true"} if dry_run else None
    answer = client.carry_out(operation, model, query=query, body=body, timeout=_TIMEOUT)
    if dry_run:
        # A dry run never reports `live`. The missing `live` is not a failure.
        answer |= {"live": True}
    verb = "can be served" if dry_run else "is served"
    head = f"`{answer['model']}` {verb} {_described(answer['plan'])}"
    print_change(answer, as_json=as_json, head=head, more=_show_away)


def _described(plan: dict[str, Any] | None) -> str:
    if plan is None:
        return "as its folder defines"
    weights = plan["revisions"] or {}
    split_text = " ".join(f"{revision}={weight}" for revision, weight in weights.items())
    shadowed = plan["shadow"]
    if shadowed is None:
        return f"with the split {split_text}"
    share, revision = shadowed["share"], shadowed["revision"]
    return f"with the split {split_text}; {share:g} % of the items also go to shadow {revision}"


def _show_away(answer: Any) -> None:
    for backend, reason in answer["away"].items():
        click.echo(
            f"{backend}: cannot be reached, and gets the plan when it returns: {reason}", err=True
        )


def _show(answer: dict[str, Any]) -> None:
    origin = "the operators' plan" if answer["planned"] else "its folder"
    click.echo(
        f"{answer['model']} {answer['revision']}: split from {origin}, on"
        f" {', '.join(answer['backends'])}"
    )
    for backend in answer["others"]:
        click.echo(f"{backend}: serves the model differently", err=True)
    _show_away(answer)
    for each in answer["arms"]:
        _show_revision(each)


def _show_revision(found: dict[str, Any]) -> None:
    answers = found["answers"]
    share = "-" if found["share"] is None else f"{found['share']:.1%}"
    errors = found["failed"] / found["items"] if found["items"] else 0.0
    costs = ", ".join(f"{cost} {currency}" for currency, cost in found["costs"].items())
    click.echo(
        f"revision {found['arm']}: weight {found['weight']} ({found['wanted_share']:.1%}), "
        f"{found['items']} items ({share}), {found['hit']} hits, {errors:.2%} errors"
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
    """Parse `revision=weight` arguments. A revision with the weight 0 is left out."""
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
        raise click.BadParameter("at least one revision must have a weight above 0")
    return shares
