"""Implements `models sync` and `models push`: repositories on object storage and in registries."""

import signal
import sys
import time
from contextlib import closing
from pathlib import Path

import click

from backends.errors import StartProblem
from backends.model_tools.syncing.manifest import SyncProblem
from backends.model_tools.syncing.push import push
from backends.model_tools.syncing.stores import open_store, read_source
from backends.model_tools.syncing.synchronise import Synchroniser, SyncResult

_FOLDER = click.Path(path_type=Path, file_okay=False)
_PLAIN_HTTP = click.option(
    "--plain-http", is_flag=True, help="Ask a registry over HTTP, on other hosts than loopback."
)


@click.command("sync")
@click.argument("source")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option("--once", is_flag=True, help="Synchronise once, which is the default.")
@click.option(
    "--watch",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Look for changes so often, until SIGTERM.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="PATTERN",
    default=("*",),
    help="Bring these models alone, with what they build on named, too.",
)
@click.option("--prune", is_flag=True, help="Remove what left the source although it is served.")
@_PLAIN_HTTP
def sync_command(
    *,
    source: str,
    folder: Path,
    once: bool,
    watch: float | None,
    models: tuple[str, ...],
    prune: bool,
    plain_http: bool,
) -> None:
    """Make the repository DIR hold what SOURCE holds.

    SOURCE is `s3://bucket/prefix`, `oci://registry/name:tag` or `file:///folder`, or one manifest
    there, with `@sha256:...` behind it. It is written by `models push`, by `oras push`, or as a
    container image with the models in `/models`.

    Each file is checked against its digest; when all are there, whole revisions are renamed into
    place. A backend over DIR takes them up. What is truncated, altered or missing is refused, and
    nothing changes. A sync that was killed goes on where it was.
    """
    if once and watch is not None:
        raise StartProblem("`--once` and `--watch` exclude each other")
    place = read_source(source)
    with closing(open_store(place, plain_http=plain_http)) as store:
        synchroniser = Synchroniser(store, folder, name=source, prune=prune, models=models)
        if watch is None:
            _show(source, synchroniser.run(place.reference), is_first=True)
            return
        # The first process of a container ignores signals that it does not handle.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        is_in_place = False
        while True:
            is_in_place |= _try(synchroniser, source, place.reference, is_first=not is_in_place)
            time.sleep(watch)


@click.command("push")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.argument("target")
@click.option("--model", "models", multiple=True, metavar="NAME", help="Push this model alone.")
@click.option("--force", is_flag=True, help="Send what is there already, too: it may be altered.")
@_PLAIN_HTTP
def push_command(
    *, folder: Path, target: str, models: tuple[str, ...], force: bool, plain_http: bool
) -> None:
    """Push the repository DIR to TARGET, for `models sync`.

    TARGET is `s3://bucket/prefix`, `oci://registry/name:tag` or `file:///folder`. Prints the digest
    of the manifest, which lists each file with digest and size. What is there already is not sent
    again; the manifest is written last.
    """
    place = read_source(target)
    if place.is_pinned:
        raise SyncProblem(f"`{target}`: a manifest has the digest of its content; leave it out")
    with closing(open_store(place, plain_http=plain_http)) as store:
        click.echo(push(folder, store, tag=place.reference, models=models, force=force))


def _try(synchroniser: Synchroniser, source: str, reference: str, *, is_first: bool) -> bool:
    """Synchronise; print what is wrong, and return whether nothing is."""
    try:
        _show(source, synchroniser.run(reference), is_first=is_first)
    except SyncProblem as error:
        click.echo(f"sluicegate models: {error}", err=True)
        return False
    except Exception as error:  # noqa: BLE001 - a source must not end what follows it
        click.echo(f"sluicegate models: {source}: {type(error).__name__}", err=True)
        return False
    return True


def _show(source: str, result: SyncResult, *, is_first: bool) -> None:
    for unit in result.changed:
        click.echo(f"{unit}: in place")
    for unit in result.removed:
        click.echo(f"{unit}: removed")
    if is_first or result.changed or result.removed:
        click.echo(f"{source} is in place: {result.digest}")
