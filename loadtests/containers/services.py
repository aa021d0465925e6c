"""Runs the services of compose.yaml and its overrides as podman containers.

Images, commands, environments, networks, users, read-only roots, dropped capabilities and restarts
are the same as in the files. Only the volumes differ from the files: each volume is a small file
system of its own, so that a fault can fill it.
"""

import os
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any  # a compose file has values of every type

import msgspec

from loadtests.containers.images import full_name, tagged
from loadtests.containers.podman import HOME, ContainerState, execute, inspect, names, run
from loadtests.file_systems import make_file_system, mount
from testing.compose_files import OBSERVED, ROOT, merged

PREFIX = "layout-"
BALANCER_PORT = 18080
_VOLUME_MIB = {"database": 384}
_SMALL_VOLUME_MIB = 96
_RESOLVED_NAMES = Path("/run/containers/networks/aardvark-dns")
"""The folder where podman's name server finds the names of each network."""
_CHECK = 5.0
"""Seconds for a health check. The compose files give it at most 4."""
_MEMORY = "3g"
"""The memory limit of a container. The bounds that load tests check are lower."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a service of compose.yaml that `start` uses."""

    name: str
    image: str
    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    networks: dict[str, str]
    """The address in each network; empty if the container engine chooses it."""
    volumes: tuple[str, ...] = ()
    tmpfs: tuple[str, ...] = ()
    depends_on: dict[str, Any] = {}
    healthcheck: dict[str, Any] = {}
    dns_opt: tuple[str, ...] = ()
    dns_search: tuple[str, ...] = ()
    user: str = ""
    hostname: str = ""
    stop_grace_period: str = "10s"
    restart: str = ""

    @property
    def container(self) -> str:
        """The name of the service's container."""
        return PREFIX + self.name

    @property
    def disks(self) -> list[Path]:
        """The folders of this machine that hold the service's volumes."""
        return [_volume_folder(each.partition(":")[0]) for each in self.volumes if each[0] != "."]

    @property
    def grace(self) -> int:
        """Seconds that the service may take to stop."""
        return int(self.stop_grace_period.removesuffix("s"))

    @property
    def ends(self) -> bool:
        """Whether the service does one task and exits, and other services wait for its exit."""
        return self.restart == "no"


def services(values: Mapping[str, str], *, tag: str) -> dict[str, Service]:
    """Return the services of compose.yaml and its overrides, dependencies first.

    `values` are the values of the variables of `deploy/env.example`. The project's images get the
    tag `tag`.
    """
    text = msgspec.json.encode(merged(OBSERVED)["services"]).decode()
    text = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: values[match[1]], text)
    text = re.sub(r"\$\{\w+:-\}", "", text).replace("$$", "$")
    found = msgspec.json.decode(text)
    needs = {name: each.get("depends_on", {}) for name, each in found.items()}
    return {
        name: _service(name, found[name], tag) for name in TopologicalSorter(needs).static_order()
    }


def _service(name: str, found: dict[str, Any], tag: str) -> Service:
    image = f"docker.io/{full_name(found['image'])}"
    if "build" in found:
        image = tagged(f"localhost/{found['image']}", tag)
    joined = found["networks"]
    if isinstance(joined, list):
        joined = {network: {} for network in joined}
    changed = {
        "name": name,
        "image": image,
        "environment": {key: str(each) for key, each in found.get("environment", {}).items()},
        "networks": {network: each.get("ipv4_address", "") for network, each in joined.items()},
    }
    return msgspec.convert(found | changed, Service)


def networks() -> dict[str, list[str]]:
    """Return the networks of compose.yaml, and the options with which each is created."""
    found = {}
    for name, each in merged(OBSERVED)["networks"].items():
        found[name] = ["--internal"] if each.get("internal") else []
        for place in each.get("ipam", {}).get("config", []):
            found[name] += [f"--subnet={place['subnet']}", f"--ip-range={place['ip_range']}"]
    return found


def new_secrets() -> dict[str, str]:
    """Return random values for `deploy/env.example`."""
    text = (ROOT / "deploy/env.example").read_text()
    names = re.findall(r"^(\w+)=$", text, re.MULTILINE)
    return {name: secrets.token_urlsafe(24) for name in names}


def create_networks_and_volumes(chosen: Mapping[str, Service]) -> None:
    """Create missing networks, and mount an empty file system for each volume that has none."""
    there = names("network", "ls")
    for name, options in networks().items():
        if PREFIX + name not in there:
            run("network", "create", *options, PREFIX + name)
    wanted = {folder: service for service in chosen.values() for folder in service.disks}
    for folder, service in wanted.items():
        if folder.is_mount():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        size = _VOLUME_MIB.get(folder.name, _SMALL_VOLUME_MIB)
        make_file_system(_image_of(folder), size << 20)
        mount(_image_of(folder), folder)
        (folder / "lost+found").rmdir()
        os.chown(folder, *map(int, (service.user or "10001:10001").split(":")))
        folder.chmod(0o700)


def remove_volume(folder: Path) -> None:
    """Remove a volume that no container uses, and its data."""
    if folder.is_mount():
        subprocess.run(["umount", folder], check=True)  # noqa: S607
    _image_of(folder).unlink(missing_ok=True)


def remove_everything() -> None:
    """Remove all containers, networks and volumes of the layout."""
    if own := [name for name in names("ps", "--all") if name.startswith(PREFIX)]:
        run("rm", "--force", "--time", "5", *own)
    for folder in (HOME / "volumes").glob("*"):
        remove_volume(folder)
    for name in names("network", "ls"):
        if name.startswith(PREFIX):
            run("network", "rm", "--force", name)
    # Files that remain of containers that ended badly would give a new network the address of the
    # former network.
    for path in _RESOLVED_NAMES.glob(f"{PREFIX}*"):
        path.unlink()


def start(
    service: Service, *, former: ContainerState | None = None, port: int = BALANCER_PORT
) -> None:
    """Run a container of `service`; if `former` is given, at the addresses of that container.

    The load balancer listens on `port` of this machine.

    Raises:
        PodmanError: the container cannot be run.
    """
    options = [*_options(service, former)]
    if service.name.startswith("load-balancer"):
        options.append(f"--publish=127.0.0.1:{port}:8080")
    run("run", "--detach", *options, service.image, *service.command)


def stop(service: Service, grace: int | None = None) -> None:
    """Stop a container, by default as its engine does, and give it `grace` seconds to end."""
    grace = service.grace if grace is None else grace
    run("stop", "--time", str(grace), service.container, timeout=grace + 60)


def discard(service: Service) -> None:
    """Stop the container of `service` as its engine does, and remove it."""
    stop(service)
    run("rm", "--force", service.container)


def is_healthy(service: Service) -> bool:
    """Return whether the container runs and its own health check succeeds in time.

    Exception: a container that does one task and exits is healthy once it has exited with success.
    """
    try:
        found = inspect(service.container)
        if service.ends:
            return found.status == "exited" and found.exit_code == 0
        if found.status == "running" and service.healthcheck:
            execute(service.container, *service.healthcheck["test"][1:], timeout=_CHECK)
    except (OSError, subprocess.TimeoutExpired):  # such as Sentinel's check, until names resolve
        return False
    return found.status == "running"


def _volume_folder(name: str) -> Path:
    return HOME / "volumes" / name


def _image_of(folder: Path) -> Path:
    """Return the file with the file system of a volume."""
    return HOME / f"{folder.name}.ext4"


def _options(service: Service, former: ContainerState | None) -> Iterator[str]:
    yield from ("--name", service.container, "--hostname", service.hostname or service.name)
    yield from ("--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--init")
    yield from ("--security-opt=no-new-privileges", f"--memory={_MEMORY}")
    yield f"--restart={'no' if service.ends else 'always'}"
    yield f"--stop-timeout={service.grace}"
    for network, address in service.networks.items():
        name = PREFIX + network
        fixed = f",ip={address}" if address else ""
        if former:  # with the former hardware address, which neighbours remember
            fixed = f",ip={former.address[name]},mac={former.mac[name]}"
        yield f"--network={name}:alias={service.name}{fixed}"
    yield from map("--dns-option={}".format, service.dns_opt)
    yield from map("--dns-search={}".format, service.dns_search)
    for folder in service.tmpfs:
        yield f"--tmpfs={folder}:rw,size=64m,mode=1777"
    for volume in service.volumes:
        source, target, *mode = volume.split(":")
        inside = ROOT / source if source.startswith(".") else _volume_folder(source)
        yield "--volume=" + ":".join([str(inside), target, *mode])
    for name, value in service.environment.items():
        yield f"--env={name}={value}"
    if service.user:
        yield f"--user={service.user}"
    if service.entrypoint:
        yield "--entrypoint=" + msgspec.json.encode(service.entrypoint).decode()
