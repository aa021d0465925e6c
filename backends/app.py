"""Composes a backend: loads its models, serves them and drains."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from ipaddress import ip_address

import uvloop

from sluicegate.backends.api.calls import CallAuthenticator, CallHandler
from sluicegate.backends.api.routes import Routes
from sluicegate.backends.api.server import BackendServer, bind
from sluicegate.backends.api.tls import ServerTls, server_tls
from sluicegate.backends.device_defaults import batch_rows, batch_tokens, with_device_defaults
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.executors.device_info import DeviceInfo, read_device
from sluicegate.backends.executors.opening import OpenExecutor, executor_opener
from sluicegate.backends.qualification.graph_trials import TryGraph, graph_trials
from sluicegate.backends.qualification.qualify import Qualify, qualify
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.repository.manifest import GraphManifest
from sluicegate.backends.serving.core import ServingCore
from sluicegate.backends.serving.device_watch import DeviceWatch, watch_device, watch_while_loading
from sluicegate.backends.serving.loading import LoadingTools
from sluicegate.backends.serving.reloading import Repository
from sluicegate.backends.settings import BackendSettings, process_environment, quiet_libraries
from sluicegate.backends.supervision import StopSignals, wait_for_parent_end
from sluicegate.backends.telemetry.nvml import GpuReader, open_gpus
from sluicegate.backends.telemetry.process import ProcessFigures
from sluicegate.backends.telemetry.spans import NO_TRACING, Tracing
from sluicegate.wire.gpus import GPU_PROVIDERS, PATIENCE
from sluicegate.wire.heartbeat import heartbeat
from sluicegate.wire.listening import refuse_new_connections, wait_until_empty
from sluicegate.wire.otlp.variables import TracingProblem, drop_unusable

_log = logging.getLogger(__name__)
_SWITCH = 0.0005
_DEVICE_FAILED = 70
# Timeout in seconds for the GPU driver if models run on the CPU and GPUs are only measured.
_METRICS_PATIENCE = 5.0


@asynccontextmanager
async def open_backend(
    settings: BackendSettings,
    *,
    tracing: Tracing,
    open_executor: OpenExecutor,
    qualify: Qualify = qualify,
    try_graphs: Callable[[], AbstractContextManager[TryGraph | None]] = nullcontext,
    while_loading: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> AsyncIterator[Repository]:
    """Load the repository and run its encoders' threads in the `async with` block.

    Raises:
        StartProblem: the repository's folder is missing.
    """
    quiet_libraries()
    async with AsyncExitStack() as stack:
        pool = stack.enter_context(
            ThreadPoolExecutor(settings.tokenizer_threads, thread_name_prefix="tokenizer")
        )
        # One thread for tokenizer tasks of all models, so that these tasks do not delay rows.
        token_pool = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="tokens"))
        tools = LoadingTools(
            settings=settings,
            tracing=tracing,
            clock=time.monotonic,
            tokenizer_pool=pool,
            token_pool=token_pool,
            open_executor=open_executor,
            qualify=qualify,
            graph_trials=try_graphs,
        )
        with while_loading():
            repository = await stack.enter_async_context(Repository(tools))
        yield repository


def make_routes(
    repository: Repository,
    settings: BackendSettings,
    tracing: Tracing,
    process: ProcessFigures | None = None,
    gpus: GpuReader | None = None,
) -> Routes:
    """Return the ASGI application that serves the models of a repository."""
    core = repository.core
    authenticator = CallAuthenticator(
        settings.tokens, wants_certificate=settings.tls_client_ca is not None
    )
    calls = CallHandler(
        core=core,
        authenticator=authenticator,
        tracing=tracing,
        clock=time.monotonic,
        max_body_bytes=settings.max_body_bytes,
    )
    return Routes(
        calls=calls,
        core=core,
        authenticator=authenticator,
        reload=repository.reload,
        check=repository.check,
        assign=repository.assign,
        tracing=tracing,
        process=process,
        gpus=gpus or open_gpus(),
    )


def serve(settings: BackendSettings) -> None:
    """Serve until SIGTERM or SIGINT, then finish the calls in flight.

    Raises:
        StartProblem: the address is in use, the repository's folder is missing, certificates cannot
            be used, or anybody on the network could send calls.
    """
    parent = os.getppid()
    # With Python's default, a worker thread could wait 5 ms for the GIL after each run of a model.
    sys.setswitchinterval(_SWITCH)
    tls = server_tls(settings)
    # Bind before loading models, so that a second backend on the port fails immediately.
    with bind(settings.host, settings.port) as listener:
        check_trust(settings, listener.getsockname()[0])
        uvloop.run(_serve(settings, listener, tls, parent))


def check_trust(settings: BackendSettings, address: str) -> None:
    """Check that only trusted callers can send calls.

    Each call states its tenant, so an untrusted caller could pose as any tenant.

    Raises:
        StartProblem: anybody on the network could send calls to this address.
    """
    is_guarded = settings.tokens or settings.tls_client_ca is not None
    if not is_guarded and not ip_address(address).is_loopback:
        raise StartProblem(
            f"anybody who can reach {address} could send calls in the name of any tenant; set a "
            "secret that is shared with the gateways (`SLUICEGATE_BACKEND_TOKEN`), require client "
            "certificates (`SLUICEGATE_BACKEND_TLS_CLIENT_CA`), or listen on loopback"
        )


async def _serve(
    settings: BackendSettings, listener: socket.socket, tls: ServerTls | None, parent: int
) -> None:
    tracing = NO_TRACING
    if settings.traces:
        drop_unusable(process_environment())
        # The SDK reads the environment when it is imported.
        from sluicegate.backends.telemetry.otel_tracing import otlp_tracing  # noqa: PLC0415

        tracing = otlp_tracing(process_environment(), settings.region, settings.backend_id)
    settings = at_device(settings)
    gpus = open_gpus(patience=PATIENCE if settings.provider in GPU_PROVIDERS else _METRICS_PATIENCE)
    async with open_backend(
        settings,
        tracing=tracing,
        open_executor=executor_opener(settings),
        try_graphs=graph_trials(settings),
        while_loading=partial(watch_while_loading, settings, gpus, end_with_device),
    ) as repository:
        core = repository.core
        # Start measuring only now, because loading models has blocked the event loop.
        process = ProcessFigures()
        with heartbeat(settings.heartbeat_fd), process.measured():
            for name, reason in core.model_set.problems.items():
                _log.error("cannot load a model", extra={"model": name, "reason": reason})
            # Models stay in memory, so the garbage collector need not traverse them.
            gc.collect()
            gc.freeze()
            # Requests create few reference cycles, so collect less often than every 700 objects.
            gc.set_threshold(20_000, 20, 20)
            routes = make_routes(repository, settings, tracing, process, gpus)
            server = BackendServer(routes, tls)
            host, port = listener.getsockname()[:2]
            serves = {"address": f"{host}:{port}", "provider": core.state().provider}
            _log.info("backend started", extra=serves)
            async with _following(tls), _pushing(settings, routes):
                watch = watch_device(settings, core, gpus)
                await run_until_stopped(server, listener, core, settings, parent, watch)
    await asyncio.to_thread(tracing.close)


def at_device(
    settings: BackendSettings, read: Callable[[int], DeviceInfo] = read_device
) -> BackendSettings:
    """Return the settings, completed with defaults for the selected GPU.

    `read` takes the number of a GPU, and returns its name and memory.

    Raises:
        StartProblem: the repository's folder is missing.
    """
    if settings.provider not in GPU_PROVIDERS:
        return settings
    catalogue = read_catalogue(
        settings.models, more=settings.more_models, assigned=settings.own_assignment
    )
    graphs = [m for m in catalogue.models.values() if isinstance(m.manifest, GraphManifest)]
    device = read(settings.device)
    settings = with_device_defaults(
        settings,
        gpu_memory_bytes=device.memory_bytes,
        encoders=len(graphs),
        processes=settings.gpu_processes,
    )
    _log.info(
        "using the defaults for a GPU",
        extra={
            "device": device.name or "unknown",
            "arena_bytes": settings.gpu_memory_bytes,
            "batch_rows": batch_rows(settings),
            "batch_tokens": batch_tokens(settings),
        },
    )
    return settings


@asynccontextmanager
async def _following(tls: ServerTls | None) -> AsyncIterator[None]:
    """Reload changed certificates while the `async with` block runs.

    A reload happens on SIGHUP, or some seconds after a change.
    """
    loop = asyncio.get_running_loop()
    reload_requested = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, reload_requested.set)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(tls.follow(reload_requested)) if tls is not None else None
        yield
        if following is not None:
            following.cancel()


@asynccontextmanager
async def _pushing(settings: BackendSettings, routes: Routes) -> AsyncIterator[None]:
    """Push metrics in the `async with` block, if the environment configures a push."""
    if not settings.pushes_metrics:
        yield
        return
    environ = process_environment()
    drop_unusable(environ)
    # The SDK reads the environment when it is imported.
    from sluicegate.wire.otlp.metrics import open_pusher  # noqa: PLC0415

    attributes = {
        "service.name": "sluicegate-backend",
        "service.instance.id": settings.backend_id,
        "cloud.region": settings.region,
    }
    try:
        pusher = open_pusher(environ, attributes)
    except TracingProblem as error:
        raise StartProblem(str(error)) from error
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(pusher.run(routes.read_metrics, stop))
        yield
        stop.set()


async def run_until_stopped(
    server: BackendServer,
    listener: socket.socket,
    core: ServingCore,
    settings: BackendSettings,
    parent: int,
    watch: DeviceWatch | None = None,
) -> None:
    """Serve until a signal arrives or the parent process ends; then drain.

    The end of the parent counts only with the setting `exit_with_parent`. If `watch` reports that
    the device has failed, the process ends immediately, because runs on the device may hang.
    Gateways then retry the calls on other backends.
    """
    stop = StopSignals()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(listener))
        waits: list[asyncio.Task[object]] = [group.create_task(stop.requested.wait())]
        if settings.exit_with_parent:
            waits.append(group.create_task(wait_for_parent_end(parent)))
        if watch is not None:
            waits.append(group.create_task(_end_with_device(watch)))
        await asyncio.wait([serving, *waits], return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        leaving = group.create_task(leave(server, listener, core, settings, stop))
        forced = group.create_task(stop.forced.wait())
        await asyncio.wait([leaving, forced], return_when=asyncio.FIRST_COMPLETED)
        for wait in (leaving, forced):
            wait.cancel()
        server.stop(at_once=stop.forced.is_set())
    _log.info("backend stopped")


async def _end_with_device(watch: DeviceWatch) -> None:
    end_with_device(await watch.until_failed())


def end_with_device(reason: str) -> None:
    """End the process immediately, because the GPU has failed."""
    _log.critical("the GPU has failed; this process ends", extra={"reason": reason})
    logging.shutdown()
    os._exit(_DEVICE_FAILED)  # a normal exit could wait for the device forever


async def leave(
    server: BackendServer,
    listener: socket.socket,
    core: ServingCore,
    settings: BackendSettings,
    stop: StopSignals,
) -> None:
    """Report "not ready" but serve for `shutdown_delay`; then refuse connections and drain."""
    if server.has_started:
        core.leaving = True
        server.state.close_connections()
        await asyncio.sleep(settings.shutdown_delay if stop.is_graceful else 0.0)
        refuse_new_connections(listener)
        await wait_until_empty([listener])
        server.http.stop_accepting(listener)
        await server.http.end_idle_connections()
    await drain(core, settings.drain)


async def drain(core: ServingCore, bound: float) -> None:
    """Refuse new calls, and wait up to `bound` seconds for the calls in flight."""
    core.draining = True
    try:
        async with asyncio.timeout(bound):
            await core.idle()
    except TimeoutError:
        _log.warning(
            "the drain timeout is over; ending calls", extra={"calls": core.calls_in_flight}
        )
