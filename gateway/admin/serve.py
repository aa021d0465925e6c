"""Runs the operators' listener: creates its objects, and serves requests until it is stopped."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterable, Sequence
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from redis.asyncio import Redis

from sluicegate.gateway.admin.app import build_admin
from sluicegate.gateway.admin.authorization import new_id
from sluicegate.gateway.admin.extension import Extend, no_extension
from sluicegate.gateway.admin.identity_provider import open_identity_provider
from sluicegate.gateway.admin.machine_metrics import MachineMetrics
from sluicegate.gateway.admin.operator_access import OperatorAccess, access_to, publish_access
from sluicegate.gateway.admin.operator_directory import OperatorAuthenticator, OperatorDirectory
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.http.draining import Draining
from sluicegate.gateway.http.edge import operators_edge
from sluicegate.gateway.http.server import open_listener, serve
from sluicegate.gateway.http.side import GatewaySide
from sluicegate.gateway.http.unsent_answers import UnsentAnswers, unsent_limit
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.operations.backend_calls import BackendCalls
from sluicegate.gateway.operations.operator_keys import OperatorKeys
from sluicegate.gateway.operations.publishing import Publisher
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.redis.connect import PipelinedClient, open_client
from sluicegate.gateway.runtime.control import CONTROL_KEYS, Control
from sluicegate.gateway.runtime.follower import identity
from sluicegate.gateway.runtime.recovery import LedgerRecovery
from sluicegate.gateway.settings import Settings, process_environment
from sluicegate.gateway.telemetry.edge_metrics import EdgeMetrics
from sluicegate.gateway.telemetry.instruments import Instruments
from sluicegate.gateway.telemetry.metric_files import counted_since
from sluicegate.gateway.telemetry.metric_push import MetricPush, push_from
from sluicegate.gateway.telemetry.metrics_page import read_metrics
from sluicegate.gateway.upstream.http import HttpBackendClient
from sluicegate.gateway.upstream.tls import client_tls

_TIMEOUT = 2.0


async def serve_admin(
    settings: Settings,
    *,
    stop: asyncio.Event,
    registry: CollectorRegistry = REGISTRY,
    extend: Extend = no_extension,
) -> None:
    """Serve operators' requests until `stop` is set. `extend` adds routes to the listener.

    Raises:
        ConfigurationError: the admin key is missing or equal to the metrics key, or the listener's
            address cannot be bound.
    """
    _check_keys(settings)
    push = _open_push(settings)
    edge = operators_edge(settings, EdgeMetrics(registry, listener="operators"))
    listener, access = _listen(settings)
    draining = Draining(delay=settings.shutdown_delay, is_supervised=settings.listen_fd is not None)
    draining.announce_on_sigusr1()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(listener)
        stack.enter_context(publish_access(settings.data_dir, access))
        state, cache = _connect(settings, stack)
        ledger = stack.enter_context(Ledger(settings.ledger))
        control = Control(state)
        recovery = LedgerRecovery(control=control, record=ledger.published, region=settings.region)
        backend_client = await stack.enter_async_context(_backend_client(settings))
        publisher = _publisher(settings, control, recovery, ledger, backend_client)
        providers = await stack.enter_async_context(open_identity_provider(settings))
        operator_keys = await stack.enter_async_context(OperatorKeys(store=ledger.operators))
        directory = _directory(settings, [operator_keys, *providers])
        extension = extend(directory)
        app = build_admin(
            settings=settings,
            control=control,
            cache_redis=cache,
            ledger=ledger,
            publisher=publisher,
            recovery=recovery,
            backend_client=backend_client,
            operator_keys=operator_keys,
            directory=directory,
            draining=draining,
            extensions=extension.routers,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(push.run(partial(_metrics, settings), stop))
            tasks.create_task(_machine_metrics(settings, ledger, cache, registry).follow(stop))
            tasks.create_task(publisher.start(stop))
            tasks.create_task(publisher.prices.follow(stop))
            tasks.create_task(recovery.follow(stop))
            tasks.create_task(extension.run(stop))
            await serve(
                app,
                listener,
                drain=settings.drain,
                stop=stop,
                side=GatewaySide(new_id=new_id),
                draining=draining,
                edge=edge,
                unsent=UnsentAnswers(
                    unsent_limit(settings.memory_limit_bytes),
                    clock=asyncio.get_running_loop().time,
                ),
            )


def _open_push(settings: Settings) -> MetricPush:
    since = counted_since(settings.metrics_dir)
    return push_from(process_environment(), instance=identity(settings), counted_since=since)


def _check_keys(settings: Settings) -> None:
    if not settings.admin_key:
        raise ConfigurationError("the admin key is missing; set `SLUICEGATE_ADMIN_KEY`")
    of_admin = {settings.admin_key, settings.second_admin_key}
    of_metrics = {settings.metrics_key, settings.second_metrics_key}
    if of_admin & of_metrics - {""}:
        raise ConfigurationError(
            "`SLUICEGATE_METRICS_KEY` or `SLUICEGATE_SECOND_METRICS_KEY` equals an admin key, which"
            " may do everything; choose another value"
        )


def _backend_client(settings: Settings) -> HttpBackendClient:
    return HttpBackendClient(
        token=settings.backend_token,
        tls=client_tls(settings),
        tcp_keepalive=settings.tcp_keepalive,
    )


def _directory(
    settings: Settings, authenticators: Sequence[OperatorAuthenticator]
) -> OperatorDirectory:
    return OperatorDirectory(
        admin_keys=(settings.admin_key, settings.second_admin_key),
        metrics_keys=(settings.metrics_key, settings.second_metrics_key),
        authenticators=authenticators,
    )


def _connect(settings: Settings, stack: contextlib.AsyncExitStack) -> tuple[Redis, PipelinedClient]:
    """Return clients for the state Redis and the cache Redis; `stack` closes them."""
    keepalive = settings.tcp_keepalive
    state = connect(settings.state_url, key=CONTROL_KEYS, timeout=_TIMEOUT, keepalive=keepalive)
    stack.push_async_callback(state.aclose)
    cache = open_client(settings.cache_url, timeout=_TIMEOUT, slow=_TIMEOUT, keepalive=keepalive)
    stack.push_async_callback(cache.aclose)
    return state, cache


def _listen(settings: Settings) -> tuple[socket.socket, OperatorAccess]:
    """Return the listener's socket, and how commands on this machine reach it."""
    host = settings.admin_host
    listener = open_listener(
        host, settings.admin_port, settings.listen_fd, setting="SLUICEGATE_ADMIN_PORT"
    )
    port, certificate = listener.getsockname()[1], settings.admin_tls_certificate
    return listener, access_to(host, port, settings.admin_key, certificate=certificate)


async def _metrics(settings: Settings) -> Iterable[Metric]:
    return await asyncio.to_thread(read_metrics, settings.metrics_dir, data_dir=settings.data_dir)


def _machine_metrics(
    settings: Settings, ledger: Ledger, cache: PipelinedClient, registry: CollectorRegistry
) -> MachineMetrics:
    return MachineMetrics(
        settings=settings, ledger=ledger, cache_redis=cache, instruments=Instruments(registry)
    )


def _publisher(
    settings: Settings,
    control: Control,
    recovery: LedgerRecovery,
    ledger: Ledger,
    client: HttpBackendClient,
) -> Publisher:
    active = ActiveDocumentReader(control=control, settings=settings)
    return Publisher(
        control=control,
        recovery=recovery,
        labels=BackendCalls(control=control, active=active, client=client).labels,
        ledger=ledger,
        settings=settings,
        clock=time.time,  # noqa: TID251 - shown to operators
    )
