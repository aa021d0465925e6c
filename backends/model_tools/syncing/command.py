"""Implements `models sync` and `models push`, for object storage and registries."""

import signal
import sys
import time
from contextlib import closing
from pathlib import Path

import click

from sluicegate.backends.commands import say
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.syncing.manifest import SyncProblem
from sluicegate.backends.model_tools.syncing.push import push
from sluicegate.backends.model_tools.syncing.stores import open_store, read_source
from sluicegate.backends.model_tools.syncing.synchronise import Synchroniser, SyncResult

_FOLDER = click.Path(path_type=Path, file_okay=False)
_PLAIN_HTTP = click.option(
    "--plain-http", is_flag=True, help="Use HTTP for a registry that is not on loopback."
)


@click.command(
    "sync", epilog="\b\nExample:\n  sluicegate models sync s3://bucket/models ./models --watch 30"
)
@click.argument("source")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option("--once", is_flag=True, help="Synchronise once (the default).")
@click.option(
    "--watch",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Synchronise again after this time, until SIGTERM.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="PATTERN",
    default=("*",),
    help="Sync only these models; name the models that they build on, too.",
)
@click.option("--prune", is_flag=True, help="Remove even served revisions if they left the source.")
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
    """Copy the model repository SOURCE to the repository DIR.

    SOURCE is `s3://bucket/prefix`, `oci://registry/name:tag` or `file:///folder`. Append
    `@sha256:...` to select one manifest. The source was written by `models push` or `oras push`, or
    it is a container image with the models in `/models`.

    The command checks every file against its digest. Then it renames whole revisions into place,
    and a backend that serves DIR loads them. If a file is truncated, altered or missing, nothing
    changes. If the command was killed, run it again: it continues where it stopped.
    """
    if once and watch is not None:
        raise StartProblem("`--once` and `--watch` exclude each other")
    place = read_source(source)
    with closing(open_store(place, plain_http=plain_http)) as store:
        synchroniser = Synchroniser(store, folder, name=source, prune=prune, models=models)
        if watch is None:
            _show(source, synchroniser.run(place.reference), is_first=True)
            return
        # Without a handler, the first process of a container would ignore SIGTERM.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        is_in_place = False
        while True:
            is_in_place |= _try(synchroniser, source, place.reference, is_first=not is_in_place)
            time.sleep(watch)


@click.command("push", epilog="\b\nExample:\n  sluicegate models push ./models s3://bucket/models")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.argument("target")
@click.option("--model", "models", multiple=True, metavar="NAME", help="Push only this model.")
@click.option(
    "--force", is_flag=True, help="Send even the files that are already there, to repair them."
)
@_PLAIN_HTTP
def push_command(
    *, folder: Path, target: str, models: tuple[str, ...], force: bool, plain_http: bool
) -> None:
    """Push the repository DIR to TARGET, for `models sync`.

    TARGET is `s3://bucket/prefix`, `oci://registry/name:tag` or `file:///folder`. Files that the
    target already has are not sent again. The manifest, which lists the digest and size of each
    file, is written last. The command prints the manifest's digest.
    """
    place = read_source(target)
    if place.is_pinned:
        raise SyncProblem(
            f"`{target}`: a target cannot have a digest, which follows from the content; remove it"
        )
    with closing(open_store(place, plain_http=plain_http)) as store:
        say(push(folder, store, tag=place.reference, models=models, force=force))


def _try(synchroniser: Synchroniser, source: str, reference: str, *, is_first: bool) -> bool:
    """Synchronise once. Print an error if there is one; return true if there is none."""
    try:
        _show(source, synchroniser.run(reference), is_first=is_first)
    except SyncProblem as error:
        say(f"sluicegate models: {error}", err=True)
        return False
    except Exception as error:  # noqa: BLE001 - an error of the source must not end `--watch`
        say(f"sluicegate models: {source}: {type(error).__name__}", err=True)
        return False
    return True


def _show(source: str, result: SyncResult, *, is_first: bool) -> None:
    for unit in result.changed:
        say(f"{unit}: in place")
    for unit in result.removed:
        say(f"{unit}: removed")
    if is_first or result.changed or result.removed:
        say(f"{source} is in place: {result.digest}")
