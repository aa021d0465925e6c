"""Runs the services of compose.yaml as podman containers with own networks and volumes.

The file is used as it stands: images, commands, environments, networks, users, read-only roots,
dropped capabilities, restarts. Differences: volumes are small file systems of their own, so that a
disk can be filled; no spans are sent, and Prometheus and the collector are left out.
"""

import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any  # a compose file is of all types

import msgspec
import yaml

from loadtests.arena.images import ROOT, full_name
from loadtests.arena.podman import HOME, ContainerState, inspect, run

PREFIX = "arena-"
BALANCER_PORT = 18080
_LEFT_OUT = frozenset({"otel-collector", "jaeger", "prometheus"})
_VOLUME_MIB = {"database": 384}
_SMALL_VOLUME_MIB = 96
_MEMORY = "3g"
"""What a container that runs away may take of this machine; the arena's bounds are lower."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service of compose.yaml, as far as the arena uses it."""

    name: str
    image: str
    command: tuple[str, ...]
    entrypoint: tuple[str, ...]
    environment: dict[str, str]
    networks: tuple[str, ...]
    volumes: tuple[str, ...]
    tmpfs: tuple[str, ...]
    needs: tuple[str, ...]
    health: tuple[str, ...]
    user: str
    hostname: str
    grace: int

    @property
    def container(self) -> str:
        """The name of its container."""
        return PREFIX + self.name

    @property
    def disk(self) -> Path | None:
        """The folder of this machine that is its volume, or none."""
        named = [volume for volume in self.volumes if not volume.startswith(".")]
        return volume_folder(named[0].partition(":")[0]) if named else None


def services(values: Mapping[str, str] | None = None) -> dict[str, Service]:
    """Return the services in an order that respects their dependencies.

    `values` stand for the variables of `deploy/env.example`; by default those of the arena.
    """
    values = secrets_of_the_arena() if values is None else values
    found = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    chosen = {
        name: _service(name, each, values)
        for name, each in found.items()
        if name not in _LEFT_OUT and "profiles" not in each
    }
    return {name: chosen[name] for name in _ordered(chosen)}


def networks() -> dict[str, bool]:
    """Return the networks of compose.yaml, and whether each is internal."""
    found = yaml.safe_load((ROOT / "compose.yaml").read_text())["networks"]
    return {name: bool((each or {}).get("internal")) for name, each in found.items()}


def secrets_of_the_arena() -> dict[str, str]:
    """Return values for `deploy/env.example`, generated once."""
    path = HOME / "secrets.json"
    names = re.findall(r"^(\w+)=$", (ROOT / "deploy/env.example").read_text(), re.MULTILINE)
    kept: dict[str, str] = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    values = {name: kept.get(name) or secrets.token_urlsafe(24) for name in names}
    if values != kept:
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(values))
    return values


def volume_folder(name: str) -> Path:
    """Return the mount point of a volume's file system."""
    return HOME / "volumes" / name


def make_networks() -> None:
    """Create the missing networks."""
    there = run("network", "ls", "--format", "{{.Name}}").split()
    for name, internal in networks().items():
        if PREFIX + name not in there:
            run("network", "create", *(["--internal"] if internal else []), PREFIX + name)


def make_volumes(chosen: Mapping[str, Service]) -> None:
    """Mount an empty file system for each volume that has none."""
    for service in chosen.values():
        folder = service.disk
        if folder is None or folder.is_mount():
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
            if folder.is_mount():
                _command("umount", str(folder))
            (HOME / f"{folder.name}.ext4").unlink(missing_ok=True)
    for name in run("network", "ls", "--format", "{{.Name}}").split():
        if name.startswith(PREFIX):
            run("network", "rm", "--force", name)


def start(service: Service, *, image: str = "", former: ContainerState | None = None) -> None:
    """Run a container of `service`: of another `image`, or at the addresses of a `former` one.

    Raises:
        PodmanError: it cannot be run.
    """
    run("run", "--detach", *_options(service, former), image or service.image,
        *service.command)  # fmt: skip


def discard(service: Service) -> None:
    """Stop the container of `service` as its engine does, and remove it."""
    run("stop", "--time", str(service.grace), service.container, timeout=service.grace + 60)
    run("rm", "--force", service.container)


def is_healthy(service: Service) -> bool:
    """Return whether the container runs and its own health check succeeds."""
    if inspect(service.container).status != "running":
        return False
    if not service.health:
        return True
    done = subprocess.run(
        ["podman", "exec", service.container, *service.health],  # noqa: S607
        check=False,
        capture_output=True,
        timeout=30,
    )
    return done.returncode == 0


def _options(service: Service, former: ContainerState | None) -> Iterator[str]:
    yield from ("--name", service.container, "--hostname", service.hostname or service.name)
    yield from ("--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--init")
    yield from ("--security-opt=no-new-privileges", "--restart=always", f"--memory={_MEMORY}")
    yield f"--stop-timeout={service.grace}"
    for network in service.networks:
        name = PREFIX + network
        # The hardware address, too, as Docker does: what neighbours remember of it stays true.
        fixed = f",ip={former.address[name]},mac={former.mac[name]}" if former else ""
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
    if service.name == "load-balancer":
        yield f"--publish=127.0.0.1:{BALANCER_PORT}:8080"


def _service(name: str, found: Mapping[str, Any], values: Mapping[str, str]) -> Service:
    def filled(text: object) -> str:
        named = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: values[match[1]], str(text))
        return named.replace("$$", "$")

    own = "build" in found
    environment = {key: filled(value) for key, value in found.get("environment", {}).items()}
    health = found.get("healthcheck", {}).get("test", [])
    return Service(
        name=name,
        image=f"localhost/{found['image']}" if own else f"docker.io/{full_name(found['image'])}",
        command=tuple(map(filled, found.get("command", []))),
        entrypoint=tuple(map(filled, found.get("entrypoint", []))),
        environment=environment | ({"OTEL_SDK_DISABLED": "true"} if own else {}),
        networks=tuple(found["networks"]),
        volumes=tuple(found.get("volumes", [])),
        tmpfs=tuple(found.get("tmpfs", [])),
        needs=tuple(need for need in found.get("depends_on", {}) if need not in _LEFT_OUT),
        health=tuple(health[1:]),
        user=str(found.get("user", "")),
        hostname=str(found.get("hostname", "")),
        grace=int(str(found.get("stop_grace_period", "10s")).removesuffix("s")),
    )


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
