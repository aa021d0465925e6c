"""Defines `sluicegate bulk`, which runs a model in this process over the rows of files."""

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from sluicegate.backends.bulk.runner import BulkRunner
from sluicegate.backends.errors import BackendError, StartProblem
from sluicegate.backends.settings import Provider
from sluicegate.backends.telemetry.logs import configure_logging
from sluicegate.bulk.columns import result_names
from sluicegate.bulk.errors import BulkStopped
from sluicegate.bulk.estimate import estimate
from sluicegate.bulk.files import InputFile, OutputFolder, find_inputs, is_remote
from sluicegate.bulk.garbage import tuned_gc
from sluicegate.bulk.items import key_prefix, open_runner
from sluicegate.bulk.options import (
    BulkOptions,
    Manifest,
    OutputFormat,
    default_columns,
    make_manifest,
    read_parameters,
    read_task,
)
from sluicegate.bulk.output import OutputParts, WorkFolder, open_manifest, tidy, work_folder
from sluicegate.bulk.progress import ProgressReport
from sluicegate.bulk.ray_import import connect
from sluicegate.bulk.ray_job import RayOptions, RayRun, by_parts
from sluicegate.bulk.reading import count_rows
from sluicegate.bulk.result_store import ResultStore
from sluicegate.bulk.run import BulkRun
from sluicegate.bulk.settings import read_operator_key, read_secret
from sluicegate.bulk.shared_cache import NullCache, RedisCache, SharedCache, open_redis, read_epochs
from sluicegate.bulk.usage_report import UsageReporter, usage_reporter
from sluicegate.bulk.writing import head_types
from sluicegate.gateway.cache.key import Prefix

_STOPPED, _WRONG = 1, 2
_INTERRUPTED = 130
_EXAMPLE = "sluicegate bulk --model sentiment --task classify reviews.parquet labelled/"


class CacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Configures the result cache to share with gateways; an empty `url` means none."""

    url: str = ""
    state_url: str = ""
    scope: str = ""
    secret_file: Path | None = None
    ttl: float = 86_400.0


@click.command(epilog=f"\b\nExample:\n  {_EXAMPLE}")
@click.argument("inputs", nargs=-1, required=True)
@click.argument("output")
@click.option("--model", required=True, help="Name of the model in the repository.")
@click.option("--task", required=True, help="classify, embed, zero-shot, rerank, entities, ...")
@click.option("--models", type=click.Path(path_type=Path), help="Model repository directory.")
@click.option(
    "--parameters", default="", help="Parameters of the task as JSON, or a file with the JSON."
)
@click.option("--column", "columns", multiple=True, help="Column of the text. Give two for pairs.")
@click.option("--id", "id_column", default="", help="Column that identifies rows in the output.")
@click.option("--keep", multiple=True, help="Column to copy to the output.")
@click.option(
    "--format", "kind", type=click.Choice(get_args(OutputFormat)), help="Format of the output."
)
@click.option("--no-truncate", is_flag=True, help="Fail rows that are too long for the model.")
@click.option(
    "--max-errors", type=click.IntRange(min=0), help="Stop if more than this many rows fail."
)
@click.option(
    "--part-rows", type=click.IntRange(min=1), default=65_536, help="Rows per output file."
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Number of worker threads; the default is one per core.",
)
@click.option(
    "--provider", type=click.Choice(get_args(Provider)), help="Runtime that runs the model."
)
@click.option("--device", type=click.IntRange(min=0), help="Number of the GPU.")
@click.option("--work", type=click.Path(path_type=Path), help="Folder for intermediate files.")
@click.option("--ray", "ray_address", default="", help="Address of a Ray cluster, or `auto`.")
@click.option("--actors", type=click.IntRange(min=1), help="Ray: number of actors.")
@click.option("--gpus", type=click.FloatRange(min=0), help="Ray: GPUs per actor, such as 0.5.")
@click.option("--dry-run", is_flag=True, help="Run a sample and estimate time and cost.")
@click.option(
    "--price", type=click.FloatRange(min=0), help="Price of a million tokens, for --dry-run."
)
@click.option("--cache", "cache_url", default="", help="URL of the gateways' cache Redis.")
@click.option(
    "--cache-state", default="", help="URL of the gateways' state Redis, if it is another one."
)
@click.option(
    "--cache-scope", default="", help="Scope of cached results: `tenant:<id>` or `shared`."
)
@click.option(
    "--cache-ttl",
    type=click.FloatRange(min=1),
    default=86_400.0,
    help="Maximum age of cached results in seconds.",
)
@click.option(
    "--cache-secret-file",
    type=click.Path(path_type=Path),
    help="File with the gateways' secret. Default: SLUICEGATE_SECRET.",
)
@click.option("--usage-url", default="", help="URL of the operators' listener, to report usage.")
@click.option("--usage-tenant", default="", help="Tenant to bill.")
@click.option(
    "--usage-key-file",
    type=click.Path(path_type=Path),
    help="File with an operator's key. Default: SLUICEGATE_ADMIN_KEY.",
)
def main(inputs: tuple[str, ...], output: str, **given: Any) -> None:
    """Run a model over every row of INPUTS and write the results to the folder OUTPUT.

    INPUTS are Parquet, JSON lines or CSV files: paths, globs, or URIs of object storage. After an
    interruption, run the same command again to continue.
    """
    configure_logging()
    try:
        _run_and_report(inputs, output, given)
    except (BulkStopped, StartProblem, BackendError, OSError) as error:
        # `OSError`: the disk is full, or the network is down.
        click.echo(f"sluicegate bulk: {error}", err=True)
        sys.exit(_WRONG if isinstance(error, StartProblem) else _STOPPED)
    except KeyboardInterrupt:
        click.echo("\nsluicegate bulk: interrupted; run the same command to continue", err=True)
        sys.exit(_INTERRUPTED)


def _run_and_report(patterns: tuple[str, ...], location: str, given: dict[str, Any]) -> None:
    reporter = _reporter(given)
    if reporter is not None and not given["dry_run"]:
        reporter.check()
    done = _run(patterns, location, given)
    if reporter is not None and done is not None:
        is_new = reporter.report(done, OutputFolder(location))
        click.echo(
            "reported the usage to the ledger"
            if is_new
            else "the ledger already had the usage of this job",
            err=True,
        )


def _reporter(given: dict[str, Any]) -> UsageReporter | None:
    url = given["usage_url"]
    if not url:
        if given["usage_tenant"] or given["usage_key_file"]:
            raise BulkStopped("--usage-url is missing; give the URL of the operators' listener")
        return None
    return usage_reporter(url, given["usage_tenant"], read_operator_key(given["usage_key_file"]))


def _run(patterns: tuple[str, ...], location: str, given: dict[str, Any]) -> Manifest | None:
    """Run a job to its end and return the complete manifest, or `None` for a dry run."""
    on_ray = bool(given["ray_address"])
    inputs = find_inputs(patterns)
    if on_ray:
        # Nodes have other working directories, so make paths absolute.
        inputs = [msgspec.structs.replace(file, path=_absolute(file.path)) for file in inputs]
        location = _absolute(location)
    options = _options(inputs, given)
    folder = OutputFolder(location)
    cache = CacheOptions(
        url=given["cache_url"],
        state_url=given["cache_state"] or given["cache_url"],
        scope=given["cache_scope"] if given["cache_url"] else "",
        secret_file=given["cache_secret_file"],
        ttl=given["cache_ttl"],
    )
    named = {name: given[name] for name in ("models", "threads", "provider", "device")}
    settings = {name: value for name, value in named.items() if value is not None}
    with ExitStack() as stack:
        with open_runner(options, settings) as runner:
            prefix, shared = _open_cache(runner, options, cache, on_ray=on_ray)
            if given["dry_run"]:
                found = estimate(runner, options, inputs, prefix, price=given["price"])
                click.echo("\n".join(found.lines()))
                return None
            execution = by_parts(runner.execution) if on_ray else runner.execution
            begun = make_manifest(options, inputs, runner.info, execution, cache=cache.scope)
            # Check the folder before creating anything in it.
            open_manifest(folder, begun)
            work = stack.enter_context(work_folder(given["work"], folder, begun))
            # Read it again under the lock, because another process may have continued the job.
            manifest = open_manifest(folder, begun)
            if manifest.state == "complete":
                tidy(folder)
                work.remove()
                click.echo(f"{folder.location} is complete: {_totals(manifest)}", err=True)
                return manifest
            if not on_ray:
                errors = given["max_errors"]
                return run_job(
                    runner, manifest, prefix, shared, folder, work=work, max_errors=errors
                )
        return _run_on_ray(manifest, folder, work, given, runner.settings.provider)


def _run_on_ray(
    manifest: Manifest,
    folder: OutputFolder,
    work: WorkFolder,
    given: dict[str, Any],
    provider: Provider,
) -> Manifest:
    """Run the rest of a job on a Ray cluster and return the complete manifest."""
    threads = given["threads"] or 1
    gpus = given["gpus"]
    if gpus is None:
        gpus = 1 if provider in {"cuda", "tensorrt"} else 0
    settings: dict[str, Any] = {"threads": threads, "provider": provider}
    if given["models"] is not None:
        settings["models"] = given["models"].absolute()
    options = RayOptions(settings=settings, threads=threads, gpus=gpus, actors=given["actors"] or 0)
    total = sum(map(count_rows, manifest.inputs))
    progress = ProgressReport(sys.stderr, time.monotonic, total=total)
    connect(given["ray_address"])
    with RayRun(manifest, folder, work.stage, progress) as job:
        done = job.run(options, max_errors=given["max_errors"])
    work.remove()
    click.echo(f"{folder.location}: {_totals(done)}", err=True)
    return done


def _absolute(path: str) -> str:
    """Return a URI or an absolute path, which is valid on every node."""
    return path if is_remote(path) else str(Path(path).absolute())


def run_job(
    runner: BulkRunner,
    manifest: Manifest,
    prefix: Prefix,
    shared: SharedCache,
    folder: OutputFolder,
    *,
    work: WorkFolder,
    max_errors: int | None,
) -> Manifest:
    """Run the rest of a job in this process and return the complete manifest."""
    options, inputs = manifest.options, manifest.inputs
    types = head_types(options, inputs) if options.format == "parquet" else {}
    output = OutputParts(folder, work.stage, options, inputs, types)
    if output.has_parts and not ResultStore.is_in(work.path):
        raise BulkStopped(
            f"`{folder.location}` has finished parts, but `{work.path}` does not have their "
            "results; give the same --work as before, or another output folder"
        )
    output.begin(manifest)
    total = sum(map(count_rows, inputs))
    with ResultStore(work.path) as store, tuned_gc():
        run = BulkRun(
            runner=runner,
            options=options,
            inputs=inputs,
            prefix=prefix,
            store=store,
            cache=shared,
            output=output,
            progress=ProgressReport(sys.stderr, time.monotonic, total=total),
            max_errors=max_errors,
        )
        try:
            run.run()
        except BulkStopped:
            output.collect_errors()
            raise
        finally:
            output.close()
        usage = store.usage()
    done = msgspec.structs.replace(
        manifest, state="complete", rows=run.rows, failed_rows=output.failed, usage=usage
    )
    output.complete(done)
    work.remove()
    click.echo(f"{folder.location}: {_totals(done)}", err=True)
    return done


def _options(inputs: list[InputFile], given: dict[str, Any]) -> BulkOptions:
    task = read_task(given["task"])
    own: OutputFormat = "parquet" if inputs[0].format == "parquet" else "jsonl"
    options = BulkOptions(
        model=given["model"],
        task=task,
        parameters=read_parameters(task, given["model"], given["parameters"]),
        truncate=not given["no_truncate"],
        columns=given["columns"] or default_columns(task),
        id_column=given["id_column"],
        keep=given["keep"],
        format=given["kind"] or own,
        part_rows=given["part_rows"],
    )
    wanted = len(default_columns(task))
    if len(options.columns) != wanted and (task, len(options.columns)) != ("classify", 2):
        raise BulkStopped(
            f"the task `{task}` needs {wanted} --column, but there are {len(options.columns)}"
        )
    taken = {*result_names(task), *(() if options.id_column else ("row", "file"))}
    for name in (options.id_column, *options.keep):
        if name in taken:
            raise BulkStopped(
                f"`{name}` is also a column of the results; rename the input's column"
            )
    return options


def _open_cache(
    runner: BulkRunner, options: BulkOptions, cache: CacheOptions, *, on_ray: bool
) -> tuple[Prefix, SharedCache]:
    """Return the prefix of the items' cache keys, and the shared result cache."""
    if not cache.url:
        return key_prefix(runner), NullCache()
    if on_ray:
        raise BulkStopped("--cache and --ray cannot be combined; leave one of them out")
    if not options.truncate:
        raise BulkStopped("--cache and --no-truncate cannot be combined; leave one of them out")
    if cache.scope != "shared" and not cache.scope.startswith("tenant:"):
        raise BulkStopped("--cache-scope must be `tenant:<id>` or `shared`")
    secret = read_secret(cache.secret_file)
    epochs = read_epochs(open_redis(cache.state_url))
    epoch = epochs.of(options.model, cache.scope)
    prefix = key_prefix(runner, secret=secret, scope=cache.scope, epoch=epoch)
    return prefix, RedisCache(
        open_redis(cache.url), task=options.task, ttl=cache.ttl, epochs=epochs
    )


def _totals(manifest: Manifest) -> str:
    failed = f", {manifest.failed_rows:,} of them failed" if manifest.failed_rows else ""
    return f"{manifest.rows:,} rows{failed}"
