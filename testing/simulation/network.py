"""A simulated network: links with delays and faults, and TCP connections over them.

TCP is simple here: segments arrive in the order of their sending, lost ones are sent again from the
first unacknowledged byte (go-back-N), and a window bounds what is under way.
"""

import errno
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from testing.simulation.scheduler import Event, Scheduler

if TYPE_CHECKING:
    from testing.simulation.machines import Machine
    from testing.simulation.sockets import SimulatedSocket

Address = tuple[str, int]
BUFFER: Final = 256 * 1024
"""Bytes that each end keeps for a direction."""
_SEGMENT: Final = 64 * 1024
_FIRST_RETRY, _LONGEST_RETRY = 0.2, 60.0
_FIRST_SYN_RETRY, _SYN_RETRIES = 1.0, 6
_GIVE_UP: Final = 924.0
"""Seconds after which Linux gives up unacknowledged data, without `TCP_USER_TIMEOUT`."""
_ORPHAN: Final = 60.0
"""Seconds until a closed connection is forgotten, whose peer does not close it."""
LOOPBACK: Final = "127.0.0.1"
_FIRST_EPHEMERAL: Final = 32_768


class Network:
    """Connects machines. Delays of each segment are drawn from the seed."""

    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        self.scheduler = scheduler
        self.random = random.Random(f"network {seed}")
        self.machines: dict[str, Machine] = {}
        self.sockets: dict[int, SimulatedSocket] = {}
        """Open sockets by descriptor."""
        self.names: dict[str, list[str]] = {}
        """Addresses by host name, beside the names of machines."""
        self.delay = (0.0001, 0.0006)
        """Seconds that a segment takes between machines, at least and at most."""
        self.listeners: dict[tuple[Machine, Address | str], list[SimulatedSocket]] = {}
        self._delays: dict[tuple[str, str], tuple[float, float]] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._endpoints: dict[Endpoint, None] = {}
        self._next_descriptor = 1_000_000

    def distance(self, a: str, b: str, least: float, most: float) -> None:
        """Set the delay between two addresses, in seconds, in both directions."""
        self._delays[a, b] = self._delays[b, a] = (least, most)

    def cut(self, a: str, b: str) -> None:
        """Lose everything that is sent from `a` to `b`, also what is under way."""
        self._cuts.add((a, b))
        self.note(f"cut {a} -> {b}")
        for endpoint in self._between(a, b):
            endpoint.probe_later()

    def heal(self, a: str, b: str) -> None:
        """End the cut from `a` to `b`; senders notice it when they send again."""
        self._cuts.discard((a, b))
        self.note(f"heal {a} -> {b}")

    def slow(self, a: str, b: str, seconds: float) -> None:
        """Delay each segment from `a` to `b` by up to so many seconds more; 0 ends it."""
        self._slow[a, b] = seconds
        self.note(f"slow {a} -> {b} {seconds:g}")

    def reset(self, a: str, b: str) -> None:
        """Reset all connections between two addresses, at both ends."""
        self.note(f"reset {a} <-> {b}")
        for endpoint in list(self._between(a, b)):
            endpoint.fail(errno.ECONNRESET)

    def carries(self, a: str, b: str) -> bool:
        """Return whether what is sent from `a` arrives at `b`."""
        machine = self.machines.get(b)
        if b.startswith("127."):
            return True
        return (a, b) not in self._cuts and machine is not None and machine.is_up

    def latency(self, a: str, b: str) -> float:
        """Draw the seconds that a segment takes."""
        least, most = self._delays.get((a, b), self.delay)
        if a == b or b.startswith("127."):
            least, most = 5e-6, 30e-6
        return self.random.uniform(least, most) + self.random.random() * self._slow.get((a, b), 0.0)

    def resolve(self, host: str) -> list[str]:
        """Return the addresses of a name, none if it is unknown."""
        if host in self.names:
            return list(self.names[host])
        return [a for a, machine in self.machines.items() if machine.name == host]

    def deliver(
        self, time: float, label: str, sender: Address, to: Address, arrive: Callable[[], object]
    ) -> None:
        """Call `arrive` at `time`, unless the link is cut or the machine is down then."""

        def arrived() -> None:
            if self.carries(sender[0], to[0]):
                arrive()

        self.scheduler.at(time, f"{sender[0]}:{sender[1]} {label}", arrived)

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        self.scheduler.trace.note(self.scheduler.now, "network", what)

    def new_descriptor(self) -> int:
        """Return a number for a socket, which no real file has."""
        self._next_descriptor += 1
        return self._next_descriptor

    def bind(self, machine: "Machine", host: str, port: int, *, shared: bool) -> Address:
        """Return the address that a socket is bound to.

        Raises:
            OSError: it is another machine's, or in use.
        """
        if host not in {"", "0.0.0.0", "::", *machine.addresses} and not host.startswith("127."):  # noqa: S104
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        host = "0.0.0.0" if host in {"", "::"} else host  # noqa: S104
        if not port:
            return host, self.free_port(machine)
        for (owner, bound), sockets in self.listeners.items():
            if owner is machine and sockets and bound[1] == port and not isinstance(bound, str):
                clash = "0.0.0.0" in {host, bound[0]} or host == bound[0]  # noqa: S104
                if clash and not (shared and all(each.shares_port for each in sockets)):
                    raise OSError(errno.EADDRINUSE, "Address already in use")
        return host, port

    def free_port(self, machine: "Machine") -> int:
        """Return a port that nothing has used yet."""
        machine.last_port = max(machine.last_port, _FIRST_EPHEMERAL) + 1
        return machine.last_port

    def listener(self, machine: "Machine", address: Address | str) -> "SimulatedSocket | None":
        """Return the socket that accepts a connection to an address, if there is one."""
        found = list(self.listeners.get((machine, address), ()))
        if not isinstance(address, str):
            found += self.listeners.get((machine, ("0.0.0.0", address[1])), ())  # noqa: S104
        found = [each for each in found if not each.drops_syn] or found
        return self.random.choice(found) if found else None

    def add(self, endpoint: "Endpoint") -> None:
        """Keep an endpoint until it is dead."""
        self._endpoints[endpoint] = None

    def remove(self, endpoint: "Endpoint") -> None:
        """Forget an endpoint."""
        self._endpoints.pop(endpoint, None)

    def of_machine(self, machine: "Machine") -> list["Endpoint"]:
        """Return the endpoints of a machine."""
        return [each for each in self._endpoints if each.machine is machine]

    def _between(self, a: str, b: str) -> Iterator["Endpoint"]:
        for endpoint in list(self._endpoints):
            if {endpoint.local_host, endpoint.remote_host} == {a, b}:
                yield endpoint


class Endpoint:
    """One end of a TCP connection, as the kernel has it."""

    def __init__(
        self,
        network: Network,
        machine: "Machine",
        local: Address,
        remote: Address,
        *,
        peer: "Endpoint | None" = None,
    ) -> None:
        self.network = network
        self.machine = machine
        self.local, self.remote = local, remote
        self.peer = peer
        self.socket: SimulatedSocket | None = None
        """The application's end; `None` once it has closed the connection."""
        self.is_open = False
        self.is_dead = False
        self.error = 0
        self.inbox = bytearray()
        self.has_ended = False
        """Whether the peer sends no more."""
        self.keepalive: tuple[float, float] | None = None
        """Seconds until the first probe, and until the peer counts as lost."""
        self.user_timeout: float | None = None
        self.acknowledged = 0
        self.listener: SimulatedSocket | None = None
        """The socket that accepts the connection once the handshake has ended."""
        self._arrived = 0
        self._out = bytearray()
        self._next = 0
        self._is_closed = False
        self._must_end = False
        self._end_confirmed = False
        self._last_arrival = 0.0
        self._heard = network.scheduler.now
        self._retry = _FIRST_RETRY
        self._timer: Event | None = None
        self._prober: Event | None = None
        network.add(self)

    @property
    def local_host(self) -> str:
        """The address of this end."""
        return self.local[0]

    @property
    def remote_host(self) -> str:
        """The address of the other end."""
        return self.remote[0]

    # Connecting

    def connect(self, target: "Machine | None", address: Address | str) -> None:
        """Begin to connect; the socket becomes writable when that has ended."""
        self._send_syn(target, address, 0)

    def _send_syn(self, target: "Machine | None", address: Address | str, tries: int) -> None:
        if self.is_open or self.is_dead:
            return
        if tries > _SYN_RETRIES:
            self.fail(errno.ETIMEDOUT)
            return
        self._send("syn", lambda: self._syn_arrived(target, address))
        self._timer = self._at(
            _FIRST_SYN_RETRY * 2**tries, lambda: self._send_syn(target, address, tries + 1)
        )

    def _syn_arrived(self, target: "Machine | None", address: Address | str) -> None:
        if target is None or self.is_dead:
            return
        listener = self.network.listener(target, address)
        if self.peer is None:
            if listener is None:
                self._answer("refused", lambda: self.fail(errno.ECONNREFUSED))
                return
            if listener.drops_syn or listener.is_full:
                return
            self.peer = Endpoint(self.network, target, self.remote, self.local, peer=self)
            self.peer.listener = listener
            self.peer.is_open = True
        self._answer("syn-ack", self._opened)

    def _opened(self) -> None:
        if self.is_open or self.is_dead or self.peer is None:
            return
        self.is_open = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        peer = self.peer
        self._send("ack", peer.complete)
        self._notify()
        self.transmit()

    def complete(self) -> None:
        """Put the connection into the accept queue: the handshake has ended."""
        listener, self.listener = self.listener, None
        if listener is None or self.is_dead:
            return
        if listener.is_closed:
            self._send_reset()
            self.die()
        else:
            listener.arrived(self)

    # Sending

    @property
    def room(self) -> int:
        """Bytes that `write` takes now."""
        return BUFFER - len(self._out)

    @property
    def unconfirmed(self) -> int:
        """Bytes that the peer has not acknowledged."""
        return len(self._out)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Take bytes to send; return how many."""
        taken = min(len(data), self.room)
        self._out += data[:taken]
        self.transmit()
        return taken

    def end(self) -> None:
        """Send no more after what was written."""
        self._must_end = True
        self.transmit()

    def close(self, *, discard: bool = False) -> None:
        """Close the application's end. What was written is still sent, unless to `discard` it.

        A peer that sends to a closed end is reset.
        """
        self.socket = None
        self._is_closed = True
        if self.is_dead:
            return
        if discard or self.inbox or not self.is_open:
            if self.is_open:
                self._send_reset()
            self.die()
        else:
            self._at(_ORPHAN, self.die)
            self.end()

    @property
    def _total(self) -> int:
        """The number of the byte after all that is to be sent; the end counts as a byte."""
        ends = self._must_end and not self._end_confirmed
        return self.acknowledged + len(self._out) + ends

    def transmit(self) -> None:
        """Send what the window allows."""
        peer = self.peer
        if self.is_dead or not self.is_open or peer is None:
            return
        total, must_end = self._total, self._must_end and not self._end_confirmed
        while self._next < total:
            room = BUFFER - len(peer.inbox) - (self._next - self.acknowledged)
            if room <= 0:
                break
            start = self._next - self.acknowledged
            data = bytes(self._out[start : start + min(room, _SEGMENT)])
            at, self._next = self._next, self._next + len(data)
            ends = must_end and self._next == total - 1
            self._next += ends
            self._send_segment(at, data, ends=ends)
        if total > self.acknowledged and self._timer is None:
            self._timer = self._at(self._retry, self._late)

    def _send_segment(self, at: int, data: bytes, *, ends: bool) -> None:
        peer = self.peer
        assert peer is not None
        self._send(f"{len(data)}{'.' if ends else ''}", lambda: peer.receive(at, data, ends))

    def _late(self) -> None:
        self._timer = None
        if self.is_dead or self._total <= self.acknowledged:
            return
        limit = _GIVE_UP if self.user_timeout is None else self.user_timeout
        if self.network.scheduler.now - self._heard >= limit:
            self.fail(errno.ETIMEDOUT)
            return
        self._next = self.acknowledged
        self._retry = min(self._retry * 2, _LONGEST_RETRY)
        peer = self.peer
        if peer is not None and len(peer.inbox) >= BUFFER:
            self._send_segment(self.acknowledged, b"", ends=False)  # asks whether there is room
        self.transmit()
        if self._timer is None:
            self._timer = self._at(self._retry, self._late)

    def confirmed(self, upto: int) -> None:
        """Take an acknowledgement of all bytes before `upto`."""
        if self.is_dead:
            return
        self._heard = self.network.scheduler.now
        if upto > self.acknowledged:
            count = min(upto - self.acknowledged, len(self._out))
            del self._out[:count]
            self._end_confirmed |= upto - self.acknowledged > count
            self._next = max(self._next, upto)
            self.acknowledged = upto
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._retry = _FIRST_RETRY
            self._notify()
        self.transmit()
        self._forget_if_over()

    # Receiving

    def receive(self, at: int, data: bytes, ends: bool) -> None:  # noqa: FBT001
        """Take a segment that arrives, and acknowledge it."""
        if self.is_dead or (self._is_closed and data):
            self._send_reset()
            self.die()
            return
        self._heard = self.network.scheduler.now
        self.complete()
        if at <= self._arrived:
            fresh = data[self._arrived - at :]
            self.inbox += fresh
            self._arrived += len(fresh)
            if ends and self._arrived == at + len(data):
                self.has_ended = True
                self._arrived += 1
            self._notify()
        self._acknowledge()
        self._forget_if_over()

    def _forget_if_over(self) -> None:
        if self._is_closed and self.has_ended and self._end_confirmed:
            self.die()

    def read(self, size: int, *, peek: bool = False) -> bytes:
        """Return bytes that have arrived."""
        was_full = len(self.inbox) >= BUFFER // 2
        data = bytes(self.inbox[:size])
        if not peek:
            del self.inbox[:size]
            if was_full and len(self.inbox) < BUFFER // 2:
                self._acknowledge()
        return data

    def _acknowledge(self) -> None:
        peer, upto = self.peer, self._arrived
        if peer is not None:
            self._send("ack", lambda: peer.confirmed(upto), ordered=False)

    # Ending

    def fail(self, number: int) -> None:
        """End with an error of the socket: a reset, a refusal or silence."""
        if not self.is_dead:
            self.error = number
            self.die()

    def die(self) -> None:
        """Forget the connection; the peer is not told."""
        self.is_dead = True
        self._out.clear()
        for event in (self._timer, self._prober):
            if event is not None:
                event.cancel()
        self.network.remove(self)
        self._notify()

    def probe_later(self) -> None:
        """Probe the peer after the keep-alive time: the link or its machine is broken."""
        if self.keepalive is not None and self._prober is None and not self.is_dead:
            self._prober = self._at(self.keepalive[0], self._probe)

    def _probe(self) -> None:
        self._prober = None
        peer = self.peer
        if peer is None or self.keepalive is None or self.is_dead:
            return
        there = self.network.carries(self.local_host, self.remote_host)
        back = self.network.carries(self.remote_host, self.local_host)
        if there and back:
            if peer.is_dead:
                self.fail(errno.ECONNRESET)
            self._heard = self.network.scheduler.now
        elif self.network.scheduler.now - self._heard >= self.keepalive[1]:
            self.fail(errno.ETIMEDOUT)
        else:
            self._prober = self._at(1.0, self._probe)

    def _send_reset(self) -> None:
        peer = self.peer
        if peer is not None:
            self._send("rst", lambda: peer.fail(errno.ECONNRESET))

    def _notify(self) -> None:
        if self.socket is not None:
            self.socket.notify()

    def _send(self, label: str, arrive: Callable[[], object], *, ordered: bool = True) -> None:
        """Send something to the peer: `arrive` is called there, unless it is lost."""
        network = self.network
        time = network.scheduler.now + network.latency(self.local_host, self.remote_host)
        if ordered:
            time = self._last_arrival = max(time, self._last_arrival)
        network.deliver(time, label, self.local, self.remote, arrive)

    def _answer(self, label: str, arrive: Callable[[], object]) -> None:
        """Send something back to this end, before the peer has an endpoint."""
        network = self.network
        time = network.scheduler.now + network.latency(self.remote_host, self.local_host)
        network.deliver(time, label, self.remote, self.local, arrive)

    def _at(self, seconds: float, call: Callable[[], object]) -> Event:
        return self.network.scheduler.at(
            self.network.scheduler.now + seconds, f"{self.local[0]} timer", call
        )
