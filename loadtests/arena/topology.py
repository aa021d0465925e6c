"""Runs the services of compose.yaml and its override `ha` as podman containers.

The files are used as they stand: images, commands, environments, networks, users, read-only roots,
dropped capabilities, restarts. Volumes differ: they are small file systems of their own, so that a
disk can be filled. The arena leaves the override `observability` out.
"""

import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any  # a compose file is of all types

import msgspec

from loadtests.arena.images import ROOT, full_name
from loadtests.arena.podman import HOME, ContainerState, inspect, run
from testing.compose_files import HA, OBSERVED, merged

PREFIX = "arena-"
BALANCER_PORT = 18080
_VOLUME_MIB = {"database": 384}
_SMALL_VOLUME_MIB = 96
_NAMES = Path("/run/containers/networks/aardvark-dns")
"""Where podman's name server finds the names of each network."""
_MEMORY = "3g"
"""What a container that runs away may take of this machine; the arena's bounds are lower."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service of compose.yaml, as far as the arena uses it."""

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
        """The folder of this machine that is its own volume, or none."""
        return next(iter(self.disks), None)

    @property
    def disks(self) -> list[Path]:
        """The folders of this machine that are its volumes, its own first."""
        named = [volume for volume in self.volumes if not volume.startswith(".")]
        return [volume_folder(volume.partition(":")[0]) for volume in named]


def services(
    values: Mapping[str, str] | None = None, *, files: tuple[str, ...] = HA
) -> dict[str, Service]:
    """Return the services of compose.yaml and its overrides `files`, dependencies first.

    `values` stand for the variables of `deploy/env.example`; by default those of the arena.
    """
    values = secrets_of_the_arena() if values is None else values
    found = merged(files)["services"]
    chosen = {name: _service(name, each, values) for name, each in found.items()}
    return {name: chosen[name] for name in _ordered(chosen)}


def networks(files: tuple[str, ...] = OBSERVED) -> dict[str, list[str]]:
    """Return the networks of compose.yaml and `files`, and the options that make each."""
    found = merged(files)["networks"]
    return {name: [*_network_options(each or {})] for name, each in found.items()}


def secrets_of_the_arena() -> dict[str, str]:
    """Return values for `deploy/env.example`, generated once."""
    path = HOME / "secrets.json"
    names = re.findall(r"^(\w+)=$", (ROOT / "deploy/env.example").read_text(), re.MULTILINE)
    kept: dict[str, str] = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    values = {name: kept.get(name) or secrets.token_urlsafe(24) for name in names}
    if values != kept:
        _keep(values)
    return values


def keep_secrets(changed: Mapping[str, str]) -> None:
    """Keep the new values of secrets that were rotated."""
    _keep(secrets_of_the_arena() | dict(changed))


def _keep(values: Mapping[str, str]) -> None:
    path = HOME / "secrets.json"
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(values))


def volume_folder(name: str) -> Path:
    """Return the mount point of a volume's file system."""
    return HOME / "volumes" / name


def make_networks() -> None:
    """Create the missing networks."""
    there = run("network", "ls", "--format", "{{.Name}}").split()
    for name, options in networks().items():
        if PREFIX + name not in there:
            run("network", "create", *options, PREFIX + name)


def make_volumes(chosen: Mapping[str, Service]) -> None:
    """Mount an empty file system for each volume that has none."""
    wanted = {folder: service for service in chosen.values() for folder in service.disks}
    for folder, service in wanted.items():
        if folder.is_mount():
            continue
        image = HOME / f"{folder.name}.ext4"
        folder.mkdir(parents=True, exist_ok=True)
        size = _VOLUME_MIB.get(folder.name, _SMALL_VOLUME_MIB)
        _command("truncate", f"--size={size}M", str(image))
        # Nothing is kept for root: what is full for the container is full.
        _command("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        _command("mount", "-o", "loop", str(image), str(folder))
        (folder / "lost+found").rmdir()
        owner = service.user or "10001:10001"
        _command("chown", owner, str(folder))
        folder.chmod(0o700)


def remove(*, volumes: bool) -> None:
    """Remove the arena's containers and networks, and with `volumes` their data."""
    containers = run("ps", "--all", "--format", "{{.Names}}").split()
    own = [name for name in containers if name.startswith(PREFIX)]
    if own:
        run("rm", "--force", "--time", "5", *own)
    if volumes:
        for folder in (HOME / "volumes").glob("*"):
            _remove_volume(folder)
    for name in run("network", "ls", "--format", "{{.Name}}").split():
        if name.startswith(PREFIX):
            run("network", "rm", "--force", name)
    # What a container that ended badly left here would give the next network its former address.
    for path in _NAMES.glob(f"{PREFIX}*"):
        path.unlink()


def remove_volume(service: Service) -> None:
    """Remove the volume of a service that has no container, with its data."""
    if service.disk is not None:
        _remove_volume(service.disk)


def start(
    service: Service,
    *,
    image: str = "",
    former: ContainerState | None = None,
    port: int = BALANCER_PORT,
) -> None:
    """Run a container of `service`: of another `image`, or at the addresses of a `former` one.

    A load balancer is reached by `port` of this machine.

    Raises:
        PodmanError: it cannot be run.
    """
    options = [*_options(service, former)]
    if service.name.startswith("load-balancer"):
        options.append(f"--publish=127.0.0.1:{port}:8080")
    run("run", "--detach", *options, image or service.image, *service.command)


def discard(service: Service) -> None:
    """Stop the container of `service` as its engine does, and remove it."""
    run("stop", "--time", str(service.grace), service.container, timeout=service.grace + 60)
    run("rm", "--force", service.container)


def is_healthy(service: Service) -> bool:
    """Return whether the container runs and its own health check succeeds in time.

    One whose command ends has succeeded.
    """
    found = inspect(service.container)
    if service.ends:
        return found.status == "exited" and found.exit_code == 0
    if found.status != "running":
        return False
    if not service.health:
        return True
    try:
        done = subprocess.run(
            ["podman", "exec", service.container, *service.health],  # noqa: S607
            check=False,
            capture_output=True,
            timeout=30,
        )
    except subprocess.TimeoutExpired:  # such as Sentinel's, which waits for names meanwhile
        return False
    return done.returncode == 0


def _remove_volume(folder: Path) -> None:
    if folder.is_mount():
        _command("umount", str(folder))
    (HOME / f"{folder.name}.ext4").unlink(missing_ok=True)


def _options(service: Service, former: ContainerState | None) -> Iterator[str]:
    yield from ("--name", service.container, "--hostname", service.hostname or service.name)
    yield from ("--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--init")
    yield from ("--security-opt=no-new-privileges", f"--memory={_MEMORY}")
    yield f"--restart={'no' if service.ends else 'always'}"
    yield f"--stop-timeout={service.grace}"
    for network, address in service.networks.items():
        name = PREFIX + network
        # The hardware address, too, as Docker does: what neighbours remember of it stays true.
        fixed = f",ip={former.address[name]},mac={former.mac[name]}" if former else ""
        if address and not former:
            fixed = f",ip={address}"
        yield f"--network={name}:alias={service.name}{fixed}"
    for folder in service.tmpfs:
        yield f"--tmpfs={folder}:rw,size=64m,mode=1777"
    for volume in service.volumes:
        source, target, *mode = volume.split(":")
        inside = ROOT / source if source.startswith(".") else volume_folder(source)
        yield "--volume=" + ":".join([str(inside), target, *mode])
    for name, value in service.environment.items():
        yield f"--env={name}={value}"
    if service.user:
        yield f"--user={service.user}"
    if service.entrypoint:
        yield "--entrypoint=" + msgspec.json.encode(service.entrypoint).decode()


def _service(name: str, found: Mapping[str, Any], values: Mapping[str, str]) -> Service:
    def filled(text: object) -> str:
        named = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: values[match[1]], str(text))
        return re.sub(r"\$\{\w+:-\}", "", named).replace("$$", "$")

    own = "build" in found
    environment = {key: filled(value) for key, value in found.get("environment", {}).items()}
    health = found.get("healthcheck", {}).get("test", [])
    return Service(
        name=name,
        image=f"localhost/{found['image']}" if own else f"docker.io/{full_name(found['image'])}",
        command=tuple(map(filled, found.get("command", []))),
        entrypoint=tuple(map(filled, found.get("entrypoint", []))),
        environment=environment,
        networks=_addresses(found["networks"]),
        volumes=tuple(found.get("volumes", [])),
        tmpfs=tuple(found.get("tmpfs", [])),
        needs=tuple(found.get("depends_on", {})),
        health=tuple(health[1:]),
        user=str(found.get("user", "")),
        hostname=str(found.get("hostname", "")),
        grace=int(str(found.get("stop_grace_period", "10s")).removesuffix("s")),
        ends=found.get("restart") == "no",
    )


def _addresses(found: list[str] | dict[str, dict[str, str]]) -> dict[str, str]:
    if isinstance(found, list):
        return dict.fromkeys(found, "")
    return {network: each.get("ipv4_address", "") for network, each in found.items()}


def _network_options(found: Mapping[str, Any]) -> Iterator[str]:
    if found.get("internal"):
        yield "--internal"
    for each in found.get("ipam", {}).get("config", []):
        yield from (f"--subnet={each['subnet']}", f"--ip-range={each['ip_range']}")


def _ordered(chosen: Mapping[str, Service]) -> Iterator[str]:
    """Yield services, dependencies first."""
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
