"""Runs the parts (output files) of a bulk job on the actors of a Ray cluster.

Each actor loads the model. The content of a part depends only on the job, and parts appear
atomically. So any node may run a part, and it does not matter if a part is started twice.
"""

import io
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import msgspec

from sluicegate.bulk.errors import BulkStopped, too_many_failed
from sluicegate.bulk.files import OutputFolder, is_remote
from sluicegate.bulk.garbage import tune_gc
from sluicegate.bulk.items import key_prefix, open_runner
from sluicegate.bulk.options import Manifest, make_manifest
from sluicegate.bulk.output import WORK, OutputParts, errors_name
from sluicegate.bulk.progress import ProgressReport
from sluicegate.bulk.ray_import import actor_options, import_ray
from sluicegate.bulk.reading import count_rows
from sluicegate.bulk.result_store import ResultStore
from sluicegate.bulk.run import BulkRun
from sluicegate.bulk.shared_cache import NullCache
from sluicegate.bulk.writing import head_types


def by_parts(execution: str) -> str:
    """Return the text that describes part-by-part execution in a job's manifest."""
    return f"{execution}, by parts"


class RayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the number of actors (0: as many as fit), and the resources of each actor."""

    settings: dict[str, Any]
    """The settings of its `BulkRunner`."""
    threads: int = 1
    gpus: float = 0
    actors: int = 0


class PartRunner:
    """Runs parts of a job, one after the other, as an actor of a Ray cluster."""

    def __init__(self, *, manifest: bytes, location: str, settings: dict[str, Any]) -> None:
        """Load the model.

        Raises:
            BulkStopped: this node has another revision of the model, or other settings, than the
                job's manifest.
        """
        self._manifest = msgspec.json.decode(manifest, type=Manifest)
        options = self._manifest.options
        self._folder = OutputFolder(location)
        self._types = (
            head_types(options, self._manifest.inputs) if options.format == "parquet" else {}
        )
        self._runner = open_runner(options, settings)
        mine = make_manifest(options, (), self._runner.info, by_parts(self._runner.execution))
        for name in ("revision", "algorithm"):
            own, begun = getattr(mine, name), getattr(self._manifest, name)
            if own != begun:
                self._runner.close()
                raise BulkStopped(
                    f"a node has {name} `{own}` of `{options.model}`, but the job needs `{begun}`; "
                    "give all nodes the same model repository and settings"
                )
        self._prefix = key_prefix(self._runner)
        tune_gc()

    def __call__(self, parts: dict[str, Any]) -> dict[str, Any]:
        """Run parts; return the number of rows and failed rows of each part."""
        found = [
            self._run(int(file), int(part))
            for file, part in zip(parts["file"], parts["part"], strict=True)
        ]
        return {"rows": [rows for rows, _ in found], "failed": [failed for _, failed in found]}

    def _run(self, file: int, part: int) -> tuple[int, int]:
        with _WorkSpace(self._folder.location) as work:
            output = OutputParts(
                self._folder,
                work.stage,
                self._manifest.options,
                self._manifest.inputs,
                self._types,
                # This file may exist from an attempt that was killed.
                names={errors_name(f"{file:05}-{part:05}")},
            )
            # A store for this part alone. Results of other parts would change the batches.
            with ResultStore(work.own) as store:
                run = BulkRun(
                    runner=self._runner,
                    options=self._manifest.options,
                    inputs=self._manifest.inputs,
                    prefix=self._prefix,
                    store=store,
                    cache=NullCache(),
                    output=output,
                    progress=ProgressReport(io.StringIO(), time.monotonic),
                    max_errors=None,
                )
                try:
                    run.run_part(file, part)
                finally:
                    output.close()
        return run.rows, output.failed


class _WorkSpace:
    """Creates temporary folders for one part; `stage` is in the output folder if it is local."""

    def __init__(self, location: str) -> None:
        # Only this node reads the stored results, so keep them on its disk.
        self.own = Path(tempfile.mkdtemp(prefix="sluicegate-bulk-"))
        self.stage = self.own if is_remote(location) else Path(location) / WORK / uuid4().hex

    def __enter__(self) -> Self:
        self.stage.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for path in (self.own, self.stage):
            shutil.rmtree(path, ignore_errors=True)


class RayRun:
    """Runs the rest of a job on the cluster to which this process is connected."""

    def __init__(
        self, manifest: Manifest, folder: OutputFolder, work: Path, progress: ProgressReport
    ) -> None:
        self._manifest = manifest
        self._folder = folder
        self._work = work
        self._progress = progress

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        import_ray().shutdown()

    def run(self, options: RayOptions, *, max_errors: int | None) -> Manifest:
        """Run the job to its end and return the complete manifest.

        Raises:
            BulkStopped: the job cannot continue, or too many rows have failed.
        """
        output = self._output()
        output.begin(self._manifest)
        failed = output.failed
        rows, left = self._plan(output)
        self._progress.begin(rows)
        self._check(failed, max_errors)
        for done in self._results(left, options):
            rows += done["rows"]
            failed += done["failed"]
            self._progress.update(rows, failed)
            self._check(failed, max_errors)
        self._progress.end(rows, failed)
        output = self._output()
        complete = msgspec.structs.replace(
            self._manifest,
            state="complete",
            rows=rows,
            failed_rows=failed,
            usage=output.usage_of_parts(),
        )
        output.complete(complete)
        return complete

    def _check(self, failed: int, most: int | None) -> None:
        if most is not None and failed > most:
            self._output().collect_errors()
            raise too_many_failed(failed, most)

    def _output(self) -> OutputParts:
        manifest = self._manifest
        return OutputParts(self._folder, self._work, manifest.options, manifest.inputs, {})

    def _plan(self, output: OutputParts) -> tuple[int, list[dict[str, int]]]:
        """Return the number of finished rows, and the unfinished parts."""
        size = self._manifest.options.part_rows
        rows, left = 0, []
        for number, file in enumerate(self._manifest.inputs):
            total = count_rows(file)
            for part in range(-(-total // size)):
                if output.is_done(number, part):
                    rows += min(size, total - part * size)
                else:
                    left.append({"file": number, "part": part})
        return rows, left

    def _results(self, left: list[dict[str, int]], options: RayOptions) -> Iterator[dict[str, int]]:
        if not left:
            return
        ray = import_ray()
        data = import_ray("ray.data")
        # If a node is lost, Ray runs its parts again on other nodes.
        stage = data.from_items(left, override_num_blocks=len(left)).map_batches(
            PartRunner,
            batch_size=1,
            fn_constructor_kwargs={
                "manifest": msgspec.json.encode(self._manifest),
                "location": self._folder.location,
                "settings": options.settings,
            },
            **actor_options(
                threads=options.threads,
                gpus=options.gpus,
                actors=options.actors,
                initial=len(left),
            ),
        )
        try:
            yield from stage.iter_rows()
        except (ray.exceptions.RayError, RuntimeError) as error:
            raise BulkStopped(f"the cluster cannot continue: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    """Return the last line of an error on a node, which has the reason."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return _reason(cause)
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
