"""Reads the settings of a gateway process from its environment, once.

A change of these settings needs a restart. `gateway.config.document` defines the document, which
can be reloaded. Each variable is `SLUICEGATE_` and the field's name in capitals.
"""

import contextlib
import difflib
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gateway.errors import ConfigurationError
from gateway.sockets.tcp_keepalive import TcpKeepalive

PREFIX = "SLUICEGATE_"
_SENT = ("admin_key", "metrics_key", "second_admin_key", "second_metrics_key", "backend_token")
_KEPT = ("events_keep", "events_keep_bytes", "usage_events_keep")
# Variables that are not settings, but that commands, clients and `compose.yaml` read.
_OTHERS = (
    *("admin_certificate", "admin_url", "demo_key", "key", "url"),
    *("database_password", "grafana_password", "redis_password"),
)
_FAST_LANE = f"{PREFIX}FAST_LANE"
_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


# Bounded, because infinity cannot be converted to milliseconds or nanoseconds.
_MAX_DURATION = 1e9
_Duration = Annotated[float, msgspec.Meta(ge=0, le=_MAX_DURATION)]
_Seconds = Annotated[int, msgspec.Meta(ge=1, le=32_767)]
_Bound = Annotated[int, msgspec.Meta(ge=0)]
# The supervisor checks once a second. Heartbeats are sent twice a second.
_MIN_HEARTBEAT_TIMEOUT = 2.0
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the process settings. URLs have the formats of redis-py and SQLAlchemy."""

    data_dir: Path = Path(".sluicegate")
    """The folder of event logs, the SQLite ledger and metrics files. It must survive a restart."""
    config: Path = Path("config")
    """The folder of the configuration document."""
    placement: Path | None = None
    """A YAML file with `regions` that replace the document's regions; `sluicegate up` writes it."""
    cache_url: str = "redis://127.0.0.1:6379/0"
    """The Redis of the result cache: one server (`redis://host:port/0`), Sentinels
    (`redis-sentinel://host:port,host:port/0?primary=name`), or a cluster
    (`redis-cluster://host:port,host:port`). Use `rediss…` for TLS."""
    state_url: str = "redis://127.0.0.1:6380/0"
    """The Redis of limits, events and configuration, in the same
    forms as `SLUICEGATE_CACHE_URL`."""
    ledger_url: str = ""
    """The SQLAlchemy URL of the ledger: `postgresql+psycopg://user:password@host/name`, or
    `…@host:5432,other:5432/name` for a primary and its standbys. Unset: SQLite in the data
    directory."""
    host: str = "127.0.0.1"
    """The address of the customers' listener."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8080
    """The port of the customers' listener."""
    grpc_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    """The port for gRPC clients, on `SLUICEGATE_HOST`; 0: gRPC is off. It needs the extra `grpc`,
    which the images have. If it is unset, `sluicegate up` uses 8001 when gRPC is installed and the
    port is free."""
    admin_host: str = "127.0.0.1"
    """The address of the operators' listener."""
    admin_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8081
    """The port of the operators' listener."""
    admin_key: str = ""
    """The key of the operator `admin`, who may do everything."""
    metrics_key: str = ""
    """The key with which Prometheus reads `/metrics` of the operators' listener, and nothing else.
    It must differ from the admin key."""
    second_admin_key: str = ""
    """A second admin key, accepted during a rotation."""
    second_metrics_key: str = ""
    """A second metrics key, accepted during a rotation."""
    oidc_issuer: str = ""
    """The identity provider (`iss`) whose tokens operators may use. It needs the extra `oidc`,
    which the gateway's image has."""
    oidc_audience: str = ""
    """The audience (`aud`) that tokens must have."""
    oidc_jwks_url: str = ""
    """The URL of the provider's keys. Unset: the gateway reads it from the provider's discovery
    document."""
    oidc_ca: Path | None = None
    """The file with the CAs of the identity provider, PEM; unset: the system's CAs."""
    oidc_name_claim: str = "sub"
    """The claim that has the operator's name for the audit, such as `email`."""
    oidc_roles_claim: str = "roles"
    """The claim that has the operator's roles. A dot leads to a nested claim, as in
    `realm_access.roles`. A claim with a dot in its own name is found, too."""
    oidc_roles: str = ""
    """The role for each value of `SLUICEGATE_OIDC_ROLES_CLAIM`, such as `platform-team=operator`,
    separated by blanks. Unset: the values are themselves names of roles."""
    playground_url: str = ""
    """The address to which the console's playground sends requests, `http://host:port`. Unset: the
    customers' listener of this machine. Set it if that listener accepts only a load balancer."""
    region: str = ""
    """The name of this gateway region, if there are several. Each region has its own Redis, and
    the ledger divides limits among the regions. Empty: there is only one region."""
    stream_urls: str = ""
    """For billing with several regions: the URL of each region's state Redis, in the forms of
    `SLUICEGATE_CACHE_URL`, separated by blanks. Unset: `SLUICEGATE_STATE_URL`."""
    secret: str = ""
    """The secret for the tags of cache keys. All gateways that share a Redis need the same. Unset:
    each data directory has its own, in a file."""
    backend_token: str = ""
    """The token that the gateway sends to backends. A backend that has a token refuses calls
    without it."""
    upstream_ca: Path | None = None
    """The file with the CAs of backends with `https://`, PEM; unset: the system's CAs."""
    upstream_certificate: Path | None = None
    """The file with the gateway's client certificate for backends, PEM. It also has the key, unless
    `SLUICEGATE_UPSTREAM_KEY` is set."""
    upstream_key: Path | None = None
    """The file with the key of `SLUICEGATE_UPSTREAM_CERTIFICATE`; unset: the certificate's file has
    the key."""
    tls_certificate: Path | None = None
    """The file with the certificate of the customers' listeners, PEM. It also has the key, unless
    `SLUICEGATE_TLS_KEY` is set. Unset: HTTP and gRPC without TLS."""
    tls_key: Path | None = None
    """The file with the key of `SLUICEGATE_TLS_CERTIFICATE`; unset: the certificate's file has the
    key."""
    admin_tls_certificate: Path | None = None
    """The file with the certificate of the operators' listener, PEM. Unset: HTTP without TLS."""
    admin_tls_key: Path | None = None
    """The file with the key of `SLUICEGATE_ADMIN_TLS_CERTIFICATE`; unset: the certificate's file
    has the key."""
    admin_tls_client_ca: Path | None = None
    """The file with the CAs of operators, PEM. If set, operators need a client certificate in
    addition to a key or token."""
    hsts_max_age: _Bound | None = None
    """The seconds in the header `Strict-Transport-Security`; 0: no header. Unset: a year on
    listeners with TLS, no header on others. Set it if a load balancer in front ends TLS."""
    trusted_proxies: str = ""
    """Networks of the proxies that may state the client's address, separated by blanks or
    commas."""
    forwarded_header: Literal["x-forwarded-for", "forwarded"] = "x-forwarded-for"
    """The header with the client's address: `x-forwarded-for`, or `forwarded` (RFC 7239). The
    gateway reads no other."""
    proxy_protocol: bool = False
    """Whether trusted proxies send a PROXY protocol header, version 1 or 2, at the beginning of
    each connection to the customers' HTTP listener."""
    max_connections_per_address: _Bound = 0
    """The most connections of one client address to a worker; 0: no limit. Behind a trusted proxy,
    the worker limits the concurrent requests of each client address instead."""
    worker: str = "0"
    """The name of this worker, unique in the data directory. The supervisor sets it."""
    listen_fd: int | None = None
    """An inherited listening socket, set by the supervisor. Unset: the worker listens on
    `SLUICEGATE_HOST` and `SLUICEGATE_PORT`."""
    sibling_fds: str = ""
    """The inherited listening sockets of other workers, separated by blanks, set by the
    supervisor."""
    heartbeat_fd: int | None = None
    """An inherited pipe for heartbeats of the event loop, set by the supervisor."""
    heartbeat_timeout: _Duration = 10.0
    """Seconds without a heartbeat after which the supervisor replaces a process, at least 2; 0:
    never. Backends of `sluicegate up` get three times as long."""
    memory_limit_bytes: _Bound = 1024 * 1024 * 1024
    """Resident memory above which the supervisor replaces a gateway process; 0: no bound. A
    document is refused if this bound is less than 256 MiB above its `cache.memory_bytes`."""
    backend_memory_limit_bytes: _Bound | None = None
    """Resident memory above which the supervisor replaces a backend of `sluicegate up`. Unset: the
    backends share four fifths of the memory of the machine or container."""
    fast_lane: bool = True
    """Deprecated; the next version ignores it. Whether a worker uses the fast path: it answers a
    request that need not wait, such as a hit in memory, in the HTTP protocol itself."""
    max_loop_delay: _Duration = 0.5
    """The longest event-loop iteration of an overloaded worker, in seconds; 0: no bound. The worker
    also keeps iterations below a twentieth of the time that callers allow. Requests that do not fit
    get 503 `overloaded`."""
    shutdown_delay: _Duration = 5.0
    """Seconds that a gateway still serves after SIGTERM, while it reports that it is not ready. The
    load balancer must notice within this time."""
    drain: _Duration = 10.0
    """Seconds that requests in flight have to end, after `SLUICEGATE_SHUTDOWN_DELAY`."""
    head_timeout: _Duration = 10.0
    """Seconds from the opening of a customer's connection, or the first byte of a request, until
    the request's head is complete. After that, the worker answers 408, or only closes the
    connection if no byte came. The same time bounds a TLS handshake together with a proxy's header.
    Over gRPC, it bounds a head and each message."""
    keep_alive: _Duration = 75.0
    """Seconds that a customer's connection may be idle between requests. The worker also closes a
    connection whose client reads nothing of an answer for this time."""
    files: str = ""
    """The place of tenants' files: a folder, or `s3://bucket/prefix`. All gateways that share a
    ledger need the same. Unset: the folder `files` in the data directory, which suffices for one
    machine."""
    files_keep: _Duration = 30 * 86_400.0
    """Seconds after which a file is deleted, unless its owner chose a shorter time."""
    file_max_bytes: Annotated[int, msgspec.Meta(ge=1)] = 200 << 20
    """The largest size of a file."""
    files_max: Annotated[int, msgspec.Meta(ge=1)] = 1000
    """The most files of a tenant."""
    files_max_bytes: Annotated[int, msgspec.Meta(ge=1)] = 20 << 30
    """The most bytes of a tenant's files, including those of batch jobs. Above that, uploads and
    batch jobs are refused."""
    file_upload_timeout: _Duration = 600.0
    """Seconds that the upload of a file may take."""
    batches: bool = True
    """Whether the supervisor runs a process for batch jobs."""
    batches_at_once: Annotated[int, msgspec.Meta(ge=1)] = 4
    """Batch jobs that run at a time. Beyond that, a tenant without a running batch job may still
    start one."""
    batches_max_open: Annotated[int, msgspec.Meta(ge=1)] = 20
    """The most batch jobs of a tenant that have not ended."""
    batch_max_lines: Annotated[int, msgspec.Meta(ge=1)] = 100_000
    """The most lines of a batch job."""
    batch_max_line_bytes: Annotated[int, msgspec.Meta(ge=1)] = 8 << 20
    """The most bytes of a line of a batch job."""
    batch_max_output_bytes: Annotated[int, msgspec.Meta(ge=1)] = 4 << 30
    """The most bytes of a batch job's results. Further lines fail with `output_too_large`, without
    being run."""
    batch_in_flight: Annotated[int, msgspec.Meta(ge=1)] = 16
    """Lines that a process runs at a time, over all its batch jobs. It runs fewer lines of a tenant
    while they are refused for lack of capacity."""
    batch_part_lines: Annotated[int, msgspec.Meta(ge=1)] = 500
    """The number of lines after which the results of a batch job are stored. After a crash, at most
    this many lines run again."""
    webhooks: Path | None = None
    """A YAML file with the URL and secret of each tenant's webhook. The gateway calls it when a
    batch job ends."""
    max_connections: Annotated[int, msgspec.Meta(ge=1)] = 4096
    """The most connections of a worker, including unfinished TLS handshakes. It must be below the
    worker's limit of open files. Up to 256 further connections at a time (16 over TLS) get 503
    `overloaded` with `Retry-After`; others are closed without an answer."""
    events_interval: Annotated[float, msgspec.Meta(ge=0.01, le=60.0)] = 1.0
    """Seconds between two checks for new usage events. Usage appears in the ledger with this
    delay."""
    events_sync_interval: Annotated[float, msgspec.Meta(ge=0.05, le=60.0)] = 0.5
    """The most seconds until a worker's usage events are synced to the disk. A power cut loses
    events that are not synced."""
    events_keep: float = 2 * 86_400.0
    """Seconds for which event logs are kept after the ledger has their events. A ledger that was
    restored from a backup can then read the events again."""
    events_keep_bytes: int = 4 << 30
    """The most bytes of event logs that are kept after the ledger has their events. The oldest are
    deleted first."""
    usage_events_keep: float = 3 * 86_400.0
    """Seconds that the ledger keeps single usage events; `inf`: for ever. After that, it adds up
    the events of each hour that differ only in their amounts."""
    state_timeout: Annotated[float, msgspec.Meta(ge=0.01, le=60.0)] = 1.0
    """Seconds that workers wait for the state Redis, 0.01 to 60. After that, they admit
    `limits.local_share` of each limit."""
    tcp_keepalive_idle: _Seconds = 5
    """Seconds without a packet after which a connection to Redis or a backend is probed."""
    tcp_keepalive_interval: _Seconds = 2
    """Seconds between two keep-alive probes."""
    tcp_keepalive_count: Annotated[int, msgspec.Meta(ge=1, le=127)] = 3
    """The number of unanswered keep-alive probes after which a connection is given up. On Linux,
    `SLUICEGATE_TCP_USER_TIMEOUT` decides instead."""
    tcp_user_timeout: Annotated[float, msgspec.Meta(ge=0.001, le=1e6)] = 10.0
    """Seconds for which sent data or probes may stay unacknowledged before the connection is given
    up, on systems that support it."""
    log_level: str = "INFO"
    """`DEBUG`, `INFO`, `WARNING` or `ERROR`."""
    log_format: Literal["json", "text"] = "json"
    """The format of log lines: JSON objects, or text for people."""
    log_requests: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """The share of requests that are logged. Requests that end with 5xx are always logged."""
    log_requests_per_second: _Bound = 20
    """The most requests that a worker logs in a second."""
    logs: Literal["stdout", "files"] = "stdout"
    """Where `sluicegate gateway` writes the log lines of all processes: `stdout`, or `files` in the
    data directory."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The URLs of the Redis servers whose streams billing reads."""
        return tuple(self.stream_urls.split()) or (self.state_url,)

    @property
    def tcp_keepalive(self) -> TcpKeepalive:
        """The TCP keep-alive of connections to Redis and backends."""
        return TcpKeepalive(
            idle=self.tcp_keepalive_idle,
            interval=self.tcp_keepalive_interval,
            count=self.tcp_keepalive_count,
            user_timeout=self.tcp_user_timeout,
        )

    @property
    def ledger(self) -> str:
        """The SQLAlchemy URL of the ledger."""
        return self.ledger_url or f"sqlite:///{(self.data_dir / 'ledger.db').absolute()}"

    @property
    def metrics_dir(self) -> Path:
        """The folder of all processes' metrics files."""
        return self.data_dir / "metrics"

    @property
    def events_dir(self) -> Path:
        """The folder of event logs, each in a folder of its own."""
        return self.data_dir / "events"


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in `environ`; `None`: the process's environment.

    Raises:
        ConfigurationError: a variable is invalid.
    """
    source = os.environ if environ is None else environ
    own = (variable for variable in source if variable.startswith(PREFIX))
    values = {variable.removeprefix(PREFIX).lower(): source[variable] for variable in own}
    _check_sent(values)
    try:
        settings = msgspec.convert(values, Settings, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"a setting in the environment is invalid: {error}") from error
    _check(settings)
    if settings.region and not _REGION.fullmatch(settings.region):
        raise ConfigurationError(
            f"`{PREFIX}REGION` must be 1 to 32 letters, digits, `.`, `_` or `-`, the first a letter"
            " or digit"
        )
    return settings


def variable_warnings(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each `SLUICEGATE_` variable that is deprecated or not a setting.

    Backends check variables that begin with `SLUICEGATE_BACKEND_`.
    """
    known = [PREFIX + name.upper() for name in (*Settings.__struct_fields__, *_OTHERS)]
    if environ.get(_FAST_LANE, "true").lower() not in ("1", "true"):
        yield f"`{_FAST_LANE}` is deprecated; the next version ignores it"
    for variable in sorted(environ):
        if variable in known or variable.startswith(f"{PREFIX}BACKEND_"):
            continue
        if variable.startswith(PREFIX):
            nearest = difflib.get_close_matches(variable, known, n=1)
            hint = f"; did you mean `{nearest[0]}`?" if nearest else ""
            yield f"`{variable}` is not a setting and is ignored{hint}"


def _check(settings: Settings) -> None:
    for name in _KEPT:
        if not getattr(settings, name) >= 0:
            raise ConfigurationError(f"`{PREFIX}{name.upper()}` must be 0 or more")
    for name in settings.__struct_fields__:
        if getattr(settings, name) != getattr(settings, name):
            raise ConfigurationError(f"`{PREFIX}{name.upper()}` must be a number")
    if 0 < settings.heartbeat_timeout < _MIN_HEARTBEAT_TIMEOUT:
        raise ConfigurationError(
            f"`{PREFIX}HEARTBEAT_TIMEOUT` must be 0 (never) or at least {_MIN_HEARTBEAT_TIMEOUT:g}"
        )
    if settings.log_level.upper() not in _LEVELS:
        raise ConfigurationError(f"`{PREFIX}LOG_LEVEL` must be one of {', '.join(_LEVELS)}")


def _decode(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)


def _check_sent(values: Mapping[str, str]) -> None:
    """Refuse secrets that cannot be sent in a header, without showing them."""
    for name in _SENT:
        value = values.get(name, "")
        if value != value.strip() or not value.isprintable():
            raise ConfigurationError(
                f"`{PREFIX}{name.upper()}` cannot be sent in a header; remove line breaks, and"
                " blanks at its ends"
            )


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables with which a child process loads `settings`."""
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    return {PREFIX + n.upper(): str(v) for n, v in values.items() if v is not None}


def process_environment() -> MutableMapping[str, str]:
    """Return the process's environment, for libraries with variables of their own (`OTEL_*`)."""
    return os.environ


def export_metrics_dir(settings: Settings) -> None:
    """Make the metrics library write to files, which the operators' listener adds up.

    Call it before the library is imported, because the library reads the environment then.
    """
    with contextlib.suppress(OSError):  # on a full disk, metrics stay in memory
        settings.metrics_dir.mkdir(parents=True, exist_ok=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(settings.metrics_dir)
