"""Runs a backend that follows a GPU of the driver as one on it does, with models on the CPU."""

import argparse
import os
import sys
from pathlib import Path

import msgspec
import uvloop

from backends.api.server import BackendServer, bind
from backends.app import make_routes, open_backend, run_until_stopped
from backends.cli import check_runtime
from backends.errors import StartProblem
from backends.executors.opening import executor_opener
from backends.serving.device_watch import watch_device
from backends.settings import BackendSettings
from backends.telemetry.logs import configure_logging
from backends.telemetry.nvml import open_gpus
from backends.telemetry.spans import NO_TRACING


async def run(settings: BackendSettings, on_gpu: BackendSettings) -> None:
    """Serve until a signal, or until the GPU fails."""
    opener = executor_opener(settings)
    with bind(settings.host, settings.port) as listener:
        async with open_backend(settings, tracing=NO_TRACING, open_executor=opener) as repository:
            gpus = open_gpus()
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
    configure_logging()
    given = BackendSettings(**vars(parser.parse_args()))
    following = msgspec.structs.replace(given, provider="cuda")
    try:
        check_runtime(following)
    except StartProblem as error:
        sys.exit(str(error))
    uvloop.run(run(given, following))
