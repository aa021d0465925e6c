"""Runs the command line, or a process that the supervisor starts.

A process reads its settings from the environment. To stay small, it imports only the code that this
kind of process needs. The metrics library reads the name of its folder from an environment
variable. So the library is imported after this variable has been set.
"""

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial

from sluicegate.gateway.config.load import explain
from sluicegate.gateway.errors import ConfigurationError, GatewayError
from sluicegate.gateway.http.draining import Stop
from sluicegate.gateway.settings import Settings, export_metrics_dir, load_settings
from sluicegate.gateway.supervisor.errors import CannotStart, ExitCode
from sluicegate.gateway.supervisor.priority import give_way
from sluicegate.gateway.telemetry.logs import configure_logging
from sluicegate.wire.heartbeat import heartbeat
from sluicegate.wire.importing import without_collections

# Takes the settings and the keyword argument `stop`, and runs until the event `stop` is set.
_ProcessMain = Callable[..., Coroutine[object, object, None]]
# The module and the function of each process.
ENTRIES = {
    "run-worker": ("sluicegate.gateway.app.worker", "serve_worker"),
    "run-admin": ("sluicegate.gateway.console.serve", "serve_operators"),
    "run-shipper": ("sluicegate.gateway.workers.shipper", "run_shipper"),
    "run-billing": ("sluicegate.gateway.workers.billing", "run_billing"),
    "run-request-log": ("sluicegate.gateway.workers.request_log", "run_request_log"),
    "run-batches": ("sluicegate.gateway.app.batches", "run_batches"),
}
# The roles of these processes, as the supervisor and metrics name them.
_ROLES = {
    "run-worker": "gateway",
    "run-admin": "admin",
    "run-shipper": "shipper",
    "run-billing": "billing",
    "run-request-log": "request-log",
    "run-batches": "batches",
}
BOOTSTRAP = "run-bootstrap"
_log = logging.getLogger("sluicegate.gateway")
_SWITCH = 0.0005
# These processes serve no requests, so they have a low priority after their start.
_LOW_PRIORITY = frozenset({"run-shipper", "run-billing", "run-request-log", "run-batches"})


def run_entry(entry: str, settings: Settings) -> None:
    """Run a process on uvloop until SIGTERM or SIGINT arrives.

    `entry` is the kind of process, such as `run-worker`.
    """
    import uvloop  # noqa: PLC0415 - the bootstrap does not need it

    configure_logging(
        settings.log_level,
        process=process_name(entry, settings),
        is_text=settings.log_format == "text",
    )
    _log.info("the process starts", extra={"pid": os.getpid()})
    export_metrics_dir(settings)
    from sluicegate.gateway.telemetry.metric_files import (  # noqa: PLC0415 - the library reads the folder
        keep_metrics_in_files,
    )

    keep_metrics_in_files(settings.metrics_dir)
    from sluicegate.gateway.telemetry.process_metrics import measured_process  # noqa: PLC0415 - like the imports above

    module, function = ENTRIES[entry]
    with without_collections():
        run: _ProcessMain = getattr(importlib.import_module(module), function)
    # A shorter switch interval: otherwise the event loop would wait up to 5 ms for the GIL while a
    # thread decodes a large body.
    sys.setswitchinterval(_SWITCH)
    if entry in _LOW_PRIORITY:
        give_way()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        measuring = measured_process(_ROLES[entry])
        runner.run(_until_signal(run, settings, measuring))
    # A last garbage collection would take a quarter of a second. It is not needed, because all
    # resources are released.
    gc.freeze()


def process_name(entry: str, settings: Settings) -> str:
    """Return the name of a process in log lines, such as `worker-0` or `billing`."""
    name = entry.removeprefix("run-")
    return f"{name}-{settings.worker}" if name == "worker" else name


async def _until_signal(
    run: _ProcessMain, settings: Settings, measuring: AbstractAsyncContextManager[None]
) -> None:
    stop = Stop()
    loop = asyncio.get_running_loop()
    running = loop.create_task(run(settings, stop=stop))

    def signalled(*, is_graceful: bool) -> None:
        if stop.is_set():
            running.cancel()  # a second signal ends the process at once
        stop.is_graceful = is_graceful
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, partial(signalled, is_graceful=True))
    loop.add_signal_handler(signal.SIGINT, partial(signalled, is_graceful=False))
    with heartbeat(settings.heartbeat_fd), contextlib.suppress(asyncio.CancelledError):
        async with measuring:
            await running


def main(arguments: list[str]) -> int:
    """Run the entry or the command in `arguments`; return the exit code."""
    entry = arguments[0] if arguments else ""
    if entry not in ENTRIES and entry != BOOTSTRAP:
        with without_collections():
            from sluicegate.gateway.cli.root import main as command  # noqa: PLC0415 - others do not need it

        command(arguments, prog_name="sluicegate")
    try:
        settings = load_settings()
        if entry == BOOTSTRAP:
            with without_collections():
                from sluicegate.gateway.supervisor.bootstrap import bootstrap  # noqa: PLC0415 - imports SQL

            bootstrap(settings, sys.stdin.readline().strip())
        else:
            run_entry(entry, settings)
    except ConfigurationError as error:
        return _fail(explain(error), ExitCode.CONFIGURATION)
    except GatewayError as error:
        return _fail(error.detail, ExitCode.FAILED)
    except CannotStart as error:
        return _fail(str(error), error.exit_code)
    return ExitCode.OK


def _fail(line: str, code: ExitCode) -> int:
    print(line, file=sys.stderr)  # noqa: T201 - for the caller's terminal or log
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
