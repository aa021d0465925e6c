"""Runs the gateway's own processes on a machine (`sluicegate gateway`)."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from socket import socket

from sluicegate.gateway.settings import Settings
from sluicegate.gateway.supervisor import topology
from sluicegate.gateway.supervisor.data_directory import open_directory
from sluicegate.gateway.supervisor.listeners import check_rpc, open_listeners, reserve_port
from sluicegate.gateway.supervisor.log_files import keep_small
from sluicegate.gateway.supervisor.reload import refuse_reload, reload_configuration
from sluicegate.gateway.supervisor.spawn import Spawner
from sluicegate.gateway.supervisor.spec import ProcessRole
from sluicegate.gateway.supervisor.supervisor import Supervisor, supervise
from sluicegate.gateway.supervisor.up import check_configuration


def run_gateway(
    settings: Settings, *, workers: int, admin: bool, say: Callable[[str], None]
) -> None:
    """Run the gateway's workers and background processes until a signal ends them.

    If `admin` is true, also run the operators' listener.

    Raises:
        CannotStart: for example, a port is in use, the configuration is invalid, or a process
            fails.
    """
    check_configuration(settings)
    check_rpc(settings.grpc_port)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(open_directory(settings.data_dir, say))
        listeners = stack.enter_context(
            open_listeners(settings.host, settings.port, workers, option="SLUICEGATE_PORT")
        )
        stack.enter_context(
            reserve_port(settings.host, settings.grpc_port, option="SLUICEGATE_GRPC_PORT")
        )
        admin_listeners: Sequence[socket] = ()
        if admin:
            opened = open_listeners(
                settings.admin_host, settings.admin_port, 1, option="SLUICEGATE_ADMIN_PORT"
            )
            admin_listeners = stack.enter_context(opened)
        own = directory.settings_of_children(settings)
        specs = [
            *topology.event_specs(own, (ProcessRole.SHIPPER, ProcessRole.BATCHES)),
            *(topology.admin_spec(own, x, settings.admin_key, alone=True) for x in admin_listeners),
            *topology.worker_specs(own, listeners, alone=True),
        ]
        logs = directory.logs if settings.logs == "files" else None
        supervisor = Supervisor(root=directory.root, spawner=Spawner(logs=logs), say=say)

        async def start() -> None:
            await supervisor.ready(supervisor.start(specs))
            preface = topology.preface_of_workers(settings)
            say(f"serving on {topology.url_of(preface, settings.host, settings.port)}")

        reload = partial(reload_configuration, own, settings.admin_key) if admin else refuse_reload
        rotating = None if logs is None else partial(keep_small, logs)
        asyncio.run(
            supervise(
                supervisor,
                start,
                reload=partial(reload, say),
                delay=own.shutdown_delay,
                beside=rotating,
            )
        )
