"""Runs a backend that follows a GPU of the driver as one on it does, with models on the CPU."""

import argparse
import os
import sys
import threading
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from sluicegate.backends.api.server import BackendServer, bind
from sluicegate.backends.app import end_with_device, make_routes, open_backend, run_until_stopped
from sluicegate.backends.cli import check_runtime
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.opening import executor_opener
from sluicegate.backends.serving.device_watch import watch_device, watch_while_loading
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.logs import configure_logging
from sluicegate.backends.telemetry.nvml import open_gpus
from sluicegate.backends.telemetry.spans import NO_TRACING


def hang(_: GraphSource) -> ModelExecutor:
    """Open no graph, ever."""
    sys.stdout.write("loading\n")
    sys.stdout.flush()
    threading.Event().wait()
    raise AssertionError


async def run(settings: BackendSettings, on_gpu: BackendSettings, *, hangs: bool) -> None:
    """Serve until a signal, or until the GPU fails; where it `hangs`, no model is ever loaded."""
    opener = executor_opener(settings)
    with bind(settings.host, settings.port) as listener:
        gpus = open_gpus()
        async with open_backend(
            settings,
            tracing=NO_TRACING,
            open_executor=hang if hangs else opener,
            while_loading=partial(watch_while_loading, on_gpu, gpus, end_with_device),
        ) as repository:
            routes = make_routes(repository, settings, NO_TRACING, gpus=gpus)
            watch = watch_device(on_gpu, repository.core, gpus)
            server = BackendServer(routes)
            await run_until_stopped(
                server, listener, repository.core, settings, os.getppid(), watch
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--region", default="eu")
    parser.add_argument("--id", dest="backend_id", default="eu-0")
    parser.add_argument("--hang", action="store_true")
    configure_logging()
    options = vars(parser.parse_args())
    hangs = options.pop("hang")
    given = BackendSettings(**options)
    following = msgspec.structs.replace(given, provider="cuda")
    try:
        check_runtime(following)
    except StartProblem as error:
        sys.exit(str(error))
    uvloop.run(run(given, following, hangs=hangs))
