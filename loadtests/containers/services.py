"""Runs the services of compose.yaml and its overrides as podman containers.

The files are used as they stand: images, commands, environments, networks, users, read-only roots,
dropped capabilities, restarts. Volumes differ: each is a small file system of its own, so that a
fault can fill it.
"""

import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any  # a compose file has values of every type

import msgspec

from loadtests.containers.images import full_name, tagged
from loadtests.containers.podman import HOME, ContainerState, inspect, names, run
from testing.compose_files import OBSERVED, ROOT, merged

PREFIX = "layout-"
BALANCER_PORT = 18080
_VOLUME_MIB = {"database": 384}
_SMALL_VOLUME_MIB = 96
_RESOLVED_NAMES = Path("/run/containers/networks/aardvark-dns")
"""Where podman's name server finds the names of each network."""
_MEMORY = "3g"
"""The memory that a container may use; the bounds of the load tests are lower."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service of compose.yaml, as far as `start` uses it."""

    name: str
    image: str
    command: tuple[str, ...]
    entrypoint: tuple[str, ...]
    environment: dict[str, str]
    networks: dict[str, str]
    """The address in each network, empty where the engine chooses."""
    volumes: tuple[str, ...]
    tmpfs: tuple[str, ...]
    needs: tuple[str, ...]
    health: tuple[str, ...]
    user: str
    hostname: str
    grace: int
    ends: bool
    """Whether its command ends, once it has done what others wait for."""

    @property
    def container(self) -> str:
        """The name of its container."""
        return PREFIX + self.name

    @property
    def disk(self) -> Path | None:
        """The folder of this machine that is its first volume, or none."""
        return next(iter(self.disks), None)

    @property
    def disks(self) -> list[Path]:
        """The folders of this machine that are its volumes."""
        named = [volume.partition(":")[0] for volume in self.volumes if volume[0] != "."]
        return [_volume_folder(each) for each in named]


def services(values: Mapping[str, str], *, tag: str = "") -> dict[str, Service]:
    """Return the services of compose.yaml and its overrides, dependencies first.

    `values` stand for the variables of `deploy/env.example`. The project's images have `tag`.
    """
    found = merged(OBSERVED)["services"]
    chosen = {name: _service(name, each, values, tag) for name, each in found.items()}
    return {name: chosen[name] for name in _ordered(chosen)}


def networks() -> dict[str, list[str]]:
    """Return the networks of compose.yaml, and the options that create each."""
    found = merged(OBSERVED)["networks"]
    return {name: [*_network_options(each or {})] for name, each in found.items()}


def new_secrets() -> dict[str, str]:
    """Return random values for `deploy/env.example`."""
    text = (ROOT / "deploy/env.example").read_text()
    names = re.findall(r"^(\w+)=$", text, re.MULTILINE)
    return {name: secrets.token_urlsafe(24) for name in names}


def create_networks() -> None:
    """Create the missing networks."""
    there = names("network", "ls")
    for name, options in networks().items():
        if PREFIX + name not in there:
            run("network", "create", *options, PREFIX + name)


def create_volumes(chosen: Mapping[str, Service]) -> None:
    """Mount an empty file system for each volume that has none."""
    wanted = {folder: service for service in chosen.values() for folder in service.disks}
    for folder, service in wanted.items():
        if folder.is_mount():
            continue
        image = HOME / f"{folder.name}.ext4"
        folder.mkdir(parents=True, exist_ok=True)
        size = _VOLUME_MIB.get(folder.name, _SMALL_VOLUME_MIB)
        _command("truncate", f"--size={size}M", str(image))
        # No blocks are reserved for root: a disk that is full for the container is full.
        _command("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        _command("mount", "-o", "loop", str(image), str(folder))
        (folder / "lost+found").rmdir()
        _command("chown", service.user or "10001:10001", str(folder))
        folder.chmod(0o700)


def remove_volume(folder: Path) -> None:
    """Remove a volume that no container uses, with its data."""
    if folder.is_mount():
        _command("umount", str(folder))
    (HOME / f"{folder.name}.ext4").unlink(missing_ok=True)


def remove_everything() -> None:
    """Remove all containers, networks and volumes of the layout."""
    if own := [name for name in names("ps", "--all") if name.startswith(PREFIX)]:
        run("rm", "--force", "--time", "5", *own)
    for folder in (HOME / "volumes").glob("*"):
        remove_volume(folder)
    for name in names("network", "ls"):
        if name.startswith(PREFIX):
            run("network", "rm", "--force", name)
    # The names of a container that ended badly would give the next network its former address.
    for path in _RESOLVED_NAMES.glob(f"{PREFIX}*"):
        path.unlink()


def start(
    service: Service, *, former: ContainerState | None = None, port: int = BALANCER_PORT
) -> None:
    """Run a container of `service`, at the addresses of a `former` one if given.

    A load balancer listens on `port` of this machine.

    Raises:
        PodmanError: it cannot be run.
    """
    options = [*_options(service, former)]
    if service.name.startswith("load-balancer"):
        options.append(f"--publish=127.0.0.1:{port}:8080")
    run("run", "--detach", *options, service.image, *service.command)


def discard(service: Service) -> None:
    """Stop the container of `service` as its engine does, and remove it."""
    run("stop", "--time", str(service.grace), service.container, timeout=service.grace + 60)
    run("rm", "--force", service.container)


def is_healthy(service: Service) -> bool:
    """Return whether the container runs and its own health check succeeds in time.

    A container whose command ends is healthy once the command has succeeded.
    """
    try:
        found = inspect(service.container)
        if service.ends:
            return found.status == "exited" and found.exit_code == 0
        if found.status == "running" and service.health:
            run("exec", service.container, *service.health, timeout=30.0)
    except (OSError, subprocess.TimeoutExpired):  # such as Sentinel's, which waits for names
        return False
    return found.status == "running"


def _volume_folder(name: str) -> Path:
    return HOME / "volumes" / name


def _options(service: Service, former: ContainerState | None) -> Iterator[str]:
    yield from ("--name", service.container, "--hostname", service.hostname or service.name)
    yield from ("--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--init")
    yield from ("--security-opt=no-new-privileges", f"--memory={_MEMORY}")
    yield f"--restart={'no' if service.ends else 'always'}"
    yield f"--stop-timeout={service.grace}"
    for network, address in service.networks.items():
        name = PREFIX + network
        fixed = f",ip={address}" if address else ""
        if former:  # with the hardware address, as Docker does: neighbours remember it
            fixed = f",ip={former.address[name]},mac={former.mac[name]}"
        yield f"--network={name}:alias={service.name}{fixed}"
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


def _service(name: str, found: Mapping[str, Any], values: Mapping[str, str], tag: str) -> Service:
    def filled(text: object) -> str:
        named = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: values[match[1]], str(text))
        return re.sub(r"\$\{\w+:-\}", "", named).replace("$$", "$")

    image = f"docker.io/{full_name(found['image'])}"
    if "build" in found:
        image = tagged(f"localhost/{found['image']}", tag)
    environment = {key: filled(value) for key, value in found.get("environment", {}).items()}
    joined = found["networks"]
    if isinstance(joined, list):
        joined = {network: {} for network in joined}
    return Service(
        name=name,
        image=image,
        command=tuple(map(filled, found.get("command", []))),
        entrypoint=tuple(map(filled, found.get("entrypoint", []))),
        environment=environment,
        networks={network: each.get("ipv4_address", "") for network, each in joined.items()},
        volumes=tuple(found.get("volumes", [])),
        tmpfs=tuple(found.get("tmpfs", [])),
        needs=tuple(found.get("depends_on", {})),
        health=tuple(found.get("healthcheck", {}).get("test", [])[1:]),
        user=str(found.get("user", "")),
        hostname=str(found.get("hostname", "")),
        grace=int(str(found.get("stop_grace_period", "10s")).removesuffix("s")),
        ends=found.get("restart") == "no",
    )


def _network_options(found: Mapping[str, Any]) -> Iterator[str]:
    if found.get("internal"):
        yield "--internal"
    for each in found.get("ipam", {}).get("config", []):
        yield from (f"--subnet={each['subnet']}", f"--ip-range={each['ip_range']}")


def _ordered(chosen: Mapping[str, Service]) -> Iterator[str]:
    """Yield the names of services, dependencies first."""
    done: set[str] = set()
    while len(done) < len(chosen):
        ready = [n for n, each in chosen.items() if n not in done and set(each.needs) <= done]
        if not ready:
            raise ValueError("the services of compose.yaml need each other in a circle")
        yield from ready
        done.update(ready)


def _command(*words: str) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
