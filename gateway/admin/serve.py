"""The process of the operators' listener: makes its objects, serves until told to stop."""

import asyncio
import contextlib
import time

from gateway.admin.app import build_admin
from gateway.admin.publishing import Publisher
from gateway.cache.redis_pipes import open_pipe
from gateway.draining import Draining
from gateway.errors import ConfigurationError
from gateway.ledger.ledger import Ledger
from gateway.redis_connection import connect
from gateway.runtime.control import Control
from gateway.serving import listener_on, serve
from gateway.settings import Settings
from gateway.telemetry.logs import configure_logging

_TIMEOUT = 2.0


async def serve_admin(settings: Settings, *, stop: asyncio.Event) -> None:
    """Serve operators until `stop`.

    Raises:
        ConfigurationError: there is no admin key, or the address cannot be had.
    """
    configure_logging(settings.log_level)
    if not settings.admin_key:
        raise ConfigurationError("there is no admin key; set `SLUICEGATE_ADMIN_KEY`")
    listener = listener_on(
        settings.admin_host,
        settings.admin_port,
        settings.listen_fd,
        setting="SLUICEGATE_ADMIN_PORT",
    )
    draining = Draining(delay=settings.shutdown_delay, is_supervised=settings.listen_fd is not None)
    draining.hear_announcement()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(listener)
        state = connect(settings.state_url, timeout=_TIMEOUT)
        stack.push_async_callback(state.aclose)
        cache = open_pipe(settings.cache_url, timeout=_TIMEOUT, slow=_TIMEOUT)
        stack.push_async_callback(cache.aclose)
        ledger = stack.enter_context(Ledger(settings.ledger))
        control = Control(state)
        publisher = Publisher(
            control=control,
            ledger=ledger,
            settings=settings,
            clock=time.time,  # noqa: TID251 - shown to operators
        )
        app = build_admin(
            settings=settings,
            control=control,
            cache_redis=cache,
            ledger=ledger,
            publisher=publisher,
            draining=draining,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publisher.start(stop))
            await serve(app, listener, drain=settings.drain, stop=stop, draining=draining)
