"""Runs the process of the operators' listener: makes its objects and serves until stopped."""

import asyncio
import contextlib
import time
from functools import partial

from gateway.admin.app import build_admin, new_id
from gateway.admin.operator_access import access_to, publish_access
from gateway.admin.publishing import Publisher
from gateway.api.inference_router import HeadAsGet
from gateway.errors import ConfigurationError
from gateway.http.draining import Draining
from gateway.http.server import open_listener, serve
from gateway.http.write_coalescing import WriteCoalescingProtocol
from gateway.ledger.ledger import Ledger
from gateway.redis.client import connect
from gateway.redis.connect import open_client
from gateway.runtime.control import CONTROL_KEYS, Control
from gateway.runtime.recovery import LedgerRecovery
from gateway.settings import Settings
from gateway.upstream.http import HttpBackendClient
from gateway.upstream.tls import client_tls

_TIMEOUT = 2.0


async def serve_admin(settings: Settings, *, stop: asyncio.Event) -> None:
    """Serve operators until `stop`.

    Raises:
        ConfigurationError: there is no admin key, or the address cannot be bound.
    """
    if not settings.admin_key:
        raise ConfigurationError("there is no admin key; set `SLUICEGATE_ADMIN_KEY`")
    listener = open_listener(
        settings.admin_host,
        settings.admin_port,
        settings.listen_fd,
        setting="SLUICEGATE_ADMIN_PORT",
    )
    draining = Draining(delay=settings.shutdown_delay, is_supervised=settings.listen_fd is not None)
    draining.announce_on_sigusr1()
    access = access_to(settings.admin_host, listener.getsockname()[1], settings.admin_key)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(listener)
        stack.enter_context(publish_access(settings.data_dir, access))
        keepalive = settings.tcp_keepalive
        state = connect(settings.state_url, key=CONTROL_KEYS, timeout=_TIMEOUT, keepalive=keepalive)
        stack.push_async_callback(state.aclose)
        cache = open_client(
            settings.cache_url, timeout=_TIMEOUT, slow=_TIMEOUT, keepalive=keepalive
        )
        stack.push_async_callback(cache.aclose)
        ledger = stack.enter_context(Ledger(settings.ledger))
        control = Control(state)
        recovery = LedgerRecovery(control=control, record=ledger.published, region=settings.region)
        publisher = Publisher(
            control=control,
            recovery=recovery,
            ledger=ledger,
            settings=settings,
            clock=time.time,  # noqa: TID251 - shown to operators
        )
        backend_client = await stack.enter_async_context(
            HttpBackendClient(
                token=settings.backend_token, tls=client_tls(settings), tcp_keepalive=keepalive
            )
        )
        app = build_admin(
            settings=settings,
            control=control,
            cache_redis=cache,
            ledger=ledger,
            publisher=publisher,
            recovery=recovery,
            backend_client=backend_client,
            draining=draining,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publisher.start(stop))
            tasks.create_task(publisher.prices.follow(stop))
            tasks.create_task(recovery.follow(stop))
            protocol = partial(WriteCoalescingProtocol, new_id=new_id)
            await serve(
                HeadAsGet(app),
                listener,
                drain=settings.drain,
                stop=stop,
                protocol=protocol,
                draining=draining,
            )
