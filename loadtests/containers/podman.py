"""Calls podman with a configuration that only the load tests use.

The configuration was checked with podman 4.3 of Debian 12, run by root. It selects `runc` and
`cgroupfs`, which work without systemd. It keeps the limits on open files within the limits of the
shell.
"""

import os
import resource
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sluicegate.gateway.settings import process_environment

HOME = Path("/var/tmp/sluicegate-containers")  # noqa: S108 - owned by root, made with mode 0700
"""The folder for secrets, volumes and build files."""
_PROGRAMS = ("podman", "runc", "debootstrap", "iptables", "nsenter", "mkfs.ext4", "mount")
_PACKAGES = "podman runc netavark aardvark-dns iptables catatonit debootstrap e2fsprogs util-linux"
_INIT = "/usr/bin/catatonit"


class PodmanError(OSError):
    """A command of podman failed; the message is its standard error."""


def missing() -> str:
    """Return what this machine lacks to run containers; empty if it lacks nothing."""
    if os.geteuid() != 0:
        return "containers need root, to mount file systems and to change their firewalls"
    absent = [program for program in _PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"`{'`, `'.join(absent)}` missing; on Debian: apt-get install {_PACKAGES}"
    return ""


def prepare() -> None:
    """Write the podman configuration that `run` uses."""
    HOME.mkdir(mode=0o700, parents=True, exist_ok=True)
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    init = shutil.which("catatonit") or _INIT
    (HOME / "containers.conf").write_text(
        "[engine]\n"
        'runtime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        "[containers]\n"
        f'default_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]\n'
        f'init_path = "{init}"\nlog_driver = "k8s-file"\n'
        "[network]\n"
        'network_backend = "netavark"\n'
    )


def run(*arguments: str, timeout: float = 120.0, check: bool = True) -> str:
    """Run podman and return its standard output.

    Raises:
        PodmanError: podman failed, and `check` is true.
    """
    own = {"CONTAINERS_CONF": str(HOME / "containers.conf"), "DISABLE_HC_SYSTEMD": "true"}
    command = ["podman", *arguments]
    return _output(command, {**process_environment(), **own}, timeout=timeout, check=check)


def execute(
    container: str,
    *command: str,
    variables: Mapping[str, str] = {},
    timeout: float = 120.0,
    check: bool = True,
) -> str:
    """Run a command in a container, with its variables, and return its standard output.

    This does not use `podman exec`: in podman 4.3, it sometimes does not end if it runs in two
    containers at the same time.

    Raises:
        PodmanError: the container does not run, or the command failed and `check` is true.
    """
    pid = inspect(container).pid  # 0 if it does not run
    try:
        found = Path(f"/proc/{pid}/environ").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        if check:
            raise PodmanError(f"the container {container} does not run") from None
        return ""
    inside = dict(each.split("=", 1) for each in found if each)
    enter = (shutil.which("nsenter") or "nsenter", f"--target={pid}", "--all")
    return _output([*enter, *command], {**inside, **variables}, timeout=timeout, check=check)


def _output(command: list[str], env: Mapping[str, str], *, timeout: float, check: bool) -> str:
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
    if check and done.returncode:
        raise PodmanError(f"{' '.join(command[:4])}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def psql(container: str, query: str, *options: str, password: str = "") -> list[list[str]]:
    """Return the rows of a query to the PostgreSQL in a container, as text.

    Raises:
        PodmanError: the query failed.
    """
    words = ("psql", "--username=sluicegate", "--no-align", "--tuples-only", "--field-separator=\t")
    secret = {"PGPASSWORD": password}
    rows = execute(container, *words, *options, "--command", query, variables=secret)
    return [line.split("\t") for line in rows.splitlines()]


def names(*listing: str) -> list[str]:
    """Return the names that a podman command prints, such as `ps --all` or `network ls`."""
    return run(*listing, "--format", "{{.Names}}" if listing[0] == "ps" else "{{.Name}}").split()


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a container as podman reports it; `pid` is 0 when the container does not run."""

    pid: int
    status: str
    exit_code: int
    address: dict[str, str]
    """The container's IP address in each network."""
    mac: dict[str, str]
    """The container's hardware address in each network."""


def inspect(name: str) -> ContainerState:
    """Return the state of the container `name`."""
    (found,) = msgspec.json.decode(run("inspect", "--type", "container", name))
    networks = found["NetworkSettings"]["Networks"] or {}
    return ContainerState(
        pid=found["State"]["Pid"],
        status=found["State"]["Status"],
        exit_code=found["State"]["ExitCode"],
        address={network: each["IPAddress"] for network, each in networks.items()},
        mac={network: each["MacAddress"] for network, each in networks.items()},
    )
