"""Runs the whole system on one machine (`sluicegate up`)."""

import asyncio
import importlib.util
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from sluicegate.gateway.config.load import check_memory, explain, parse_sources
from sluicegate.gateway.config.sources import read_folder
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.http.edge import check_listeners
from sluicegate.gateway.settings import Settings, environment, process_environment
from sluicegate.gateway.supervisor import topology
from sluicegate.gateway.supervisor.child import Child
from sluicegate.gateway.supervisor.data_directory import (
    Credentials,
    choose_credentials,
    open_directory,
)
from sluicegate.gateway.supervisor.errors import CannotStart, ExitCode
from sluicegate.gateway.supervisor.listeners import open_listeners, open_rpc_port
from sluicegate.gateway.supervisor.log_files import keep_small
from sluicegate.gateway.supervisor.machine import choose_devices
from sluicegate.gateway.supervisor.plan import ProcessPlan, UpOptions, plan_up, write_placement
from sluicegate.gateway.supervisor.probes import broken_models
from sluicegate.gateway.supervisor.reload import reload_configuration
from sluicegate.gateway.supervisor.spawn import Spawner
from sluicegate.gateway.supervisor.supervisor import Supervisor, in_parallel, supervise
from sluicegate.gateway.upstream.tls import client_tls
from sluicegate.wire.cores import usable_cores
from sluicegate.wire.installing import conflict_of_runtimes, install_command, installed_runtimes

_MEBIBYTE = 1024 * 1024
_EXAMPLE = '{"model": "sentiment", "input": "a gorgeous, witty, seductive movie"}'


def run_up(settings: Settings, options: UpOptions, *, say: Callable[[str], None]) -> None:
    """Run all processes until a signal ends them.

    Raises:
        CannotStart: for example, a port is in use, the configuration is invalid, or a process
            fails.
    """
    started = time.monotonic()

    def tell(line: str) -> None:
        say(f"{time.monotonic() - started:6.1f} s  {line}")

    check_runtime()
    check_configuration(settings)
    check_models(options)
    devices = choose_devices(
        process_environment(), runtimes=installed_runtimes(), cores=usable_cores()
    )
    if devices.notice:
        tell(devices.notice)
    with (
        open_directory(settings.data_dir, tell) as directory,
        open_listeners(settings.host, settings.port, options.workers, option="--port") as workers,
        open_listeners(settings.admin_host, settings.admin_port, 1, option="--admin-port") as (
            admin,
        ),
        open_rpc_port(settings.host, options.grpc_port, say=tell) as grpc_port,
    ):
        settings = msgspec.structs.replace(settings, grpc_port=grpc_port)
        keys = choose_credentials(directory, admin_key=options.admin_key, demo_key=options.demo_key)
        plan = plan_up(
            settings,
            options,
            directory=directory,
            keys=keys,
            workers=workers,
            admin=admin,
            devices=devices,
        )
        write_placement(directory.placement, plan.backends)
        spawner = Spawner(logs=directory.logs)
        asyncio.run(_Up(plan, keys, spawner, tell, say).run())


def check_configuration(settings: Settings) -> None:
    """Check the configuration document and the certificates before any process starts.

    Raises:
        CannotStart: the document or a certificate is invalid.
    """
    try:
        check_memory(parse_sources(read_folder(settings.config)), settings.memory_limit_bytes)
        client_tls(settings).renew()  # raises an error if the files are unusable
        check_listeners(settings)
    except ConfigurationError as error:
        raise CannotStart(explain(error), exit_code=ExitCode.CONFIGURATION) from error


def check_runtime() -> None:
    """Check that exactly one model runtime is installed, such as ONNX Runtime for CPUs.

    Raises:
        CannotStart: no runtime is installed, or two conflicting runtimes are installed.
    """
    if conflict := conflict_of_runtimes():
        raise CannotStart(conflict)
    if importlib.util.find_spec("onnxruntime") is None:
        raise CannotStart(
            f"no model runtime is installed; run {install_command('up')} (for NVIDIA GPUs, the "
            "extra is `gpu`)"
        )


def check_models(options: UpOptions) -> None:
    """Check that there are models to serve.

    Raises:
        CannotStart: there are no models.
    """
    if options.models is None:
        return
    if not options.models.is_dir():
        raise CannotStart(
            f"the models directory `{options.models}` does not exist; leave out `--models` to "
            "serve the demo models"
        )
    if not (options.demo_models or _model_names(options.models)):
        raise CannotStart(
            f"`{options.models}` contains no model; import one with `sluicegate models import`, or "
            "add `--demo-models`"
        )


def _model_names(repository: Path) -> set[str]:
    folders = (path for path in repository.iterdir() if path.is_dir())
    return {folder.name for folder in folders if not folder.name.startswith(".")}


def _described(broken: dict[str, str]) -> str:
    """Return lines about the models that are not served, or "" if all models are served."""
    lines = [f"  {name}: {reason}\n" for name, reason in sorted(broken.items())]
    return "".join(["Not served:\n\n", *lines, "\n"]) if lines else ""


class _Up:
    """Starts all processes. A process starts as soon as the processes that it needs are ready."""

    def __init__(
        self,
        plan: ProcessPlan,
        keys: Credentials,
        spawner: Spawner,
        tell: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._keys = keys
        self._spawner = spawner
        self._tell = tell
        self._say = say
        settings = plan.settings
        self._url = topology.url_of(
            topology.preface_of_workers(settings), topology.reachable(settings.host), settings.port
        )
        self._supervisor = Supervisor(
            root=settings.data_dir, spawner=spawner, say=tell, address=self._url
        )

    async def run(self) -> None:
        settings = self._plan.settings
        # The commands that `models import` prints read this file.
        (settings.data_dir / "gateway-url").write_text(f"{self._url}\n")
        await supervise(
            self._supervisor,
            self._start,
            reload=partial(reload_configuration, settings, self._keys.admin_key, self._tell),
            delay=settings.shutdown_delay,
            beside=partial(keep_small, settings.data_dir / "logs"),
        )

    async def _start(self) -> None:
        valkeys = self._supervisor.start(self._plan.valkeys)
        demo = " and the demo models" if self._plan.demo_models else " and the backends"
        self._tell(f"starting Valkey, the ledger{demo}")
        backends, *_ = await in_parallel(
            self._start_backends(), self._supervisor.ready(valkeys), self._prepare_ledger()
        )
        others = self._supervisor.start(self._plan.others)
        await self._supervisor.ready([*backends, *others])
        self._show(await broken_models(self._plan.backends, self._plan.settings.backend_token))

    async def _start_backends(self) -> list[Child]:
        demo, own = self._plan.demo_models, self._plan.models
        if demo is not None:
            command = (
                *topology.PYTHON,
                "sluicegate.backends.model_tools.demo",
                "--output",
                str(demo),
            )
            await self._spawner.run_step("demo-models", command, environment={}, tell=self._tell)
            if demo != own:
                for name in sorted(_model_names(demo) & _model_names(own)):
                    self._tell(f"`{name}` is served from {own} in place of the demo model")
        if bound := self._plan.backends[0].memory_bytes:
            self._tell(f"backends that use more than {bound // _MEBIBYTE} MiB are restarted")
        first, later = topology.first_of_devices(self._plan.backends)
        started = self._supervisor.start(first)
        if any(spec.device for spec in first):
            self._tell(
                "at the first start, backends measure their models on each GPU for some minutes"
            )
            await self._supervisor.ready(started)
        return [*started, *self._supervisor.start(later)]

    async def _prepare_ledger(self) -> None:
        await self._spawner.run_step(
            "ledger",
            topology.child_command("run-bootstrap"),
            environment=environment(self._plan.settings),
            secret=self._keys.demo_key,
        )

    def _show(self, broken: dict[str, str]) -> None:
        settings = self._plan.settings
        authorization = f"-H 'Authorization: Bearer {self._keys.demo_key}'"
        example = (
            f"  curl -s {self._url}/v1/classify \\\n"
            f"    {authorization} \\\n"
            "    -H 'Content-Type: application/json' \\\n"
            f"    -d '{_EXAMPLE}'\n\n"
        )
        if self._plan.demo_models is None:
            example = f"  curl -s {self._url}/v1/models {authorization}\n\n"
        host = topology.reachable(settings.host)
        operators = topology.url_of(
            topology.preface_of_admin(settings),
            topology.reachable(settings.admin_host),
            settings.admin_port,
        )
        rpc = f"  gRPC       {host}:{settings.grpc_port}\n" if settings.grpc_port else ""
        self._tell("ready")
        self._say(
            f"\n  gateway    {self._url}\n{rpc}"
            f"  API docs   {self._url}/docs\n"
            f"  console    {operators}/console\n"
            f"  demo key   {self._keys.demo_key}\n"
            f"  admin key  {self._keys.admin_key}\n"
            f"  logs       {settings.data_dir / 'logs'}\n\n"
            "Try it:\n\n"
            f"{example}"
            f"{_described(broken)}"
            "Ctrl-C stops everything.\n"
        )
