"""A UDP socket that receives and sends batches of datagrams. The engine never sees a socket.

A *train* is a run of datagrams of equal length (the last may be shorter) that the kernel takes or returns in one call:
UDP_SEGMENT for sending, UDP_GRO for receiving. On the wire they are ordinary datagrams. If the kernel, the device or the
path refuses trains, datagrams are sent one by one: slower, with the same result.

An address has the form that the socket itself uses for its peers, so that it can be compared and hashed: `(host, port)`
on an IPv4 socket, `(host, port, flow, scope)` on an IPv6 socket, the host always numeric. `UdpSocket.resolve` makes one
from a host name. A socket bound to `::` also serves IPv4, with hosts such as `::ffff:192.0.2.7`.

No error of a peer or of the path raises here: a datagram that cannot be sent at all is counted with its drop reason, one
that cannot be sent now is returned to the caller. Linux also reports, with the next call and in a queue of its own, that a
machine refused an earlier datagram because nothing listens at its port; `take_refused` returns those addresses.
"""

from __future__ import annotations

import errno
import socket  # noqa: TID251 - the only user of sockets in the node
import sys
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Self, TypeAlias

import numpy as np

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.packets import Address, PacketBatch, Train
from meshbus.engine.session.link import MAX_TRAIN_BYTES, MAX_TRAIN_PACKETS
from meshbus.errors import ConfigError
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.reason import Reason

UdpAddress: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
Ancillary: TypeAlias = Sequence[tuple[int, int, bytes]]
"""The control messages that come with a datagram: level, kind, value."""

BUFFER_BYTES = 4 << 20
"""Buffer that the kernel is asked for in each direction: room for a few windows while the loop is busy."""
MAX_TRAINS = 64
"""Receives per drain. Full trains fill the drain's buffer before this; it bounds a drain of small datagrams."""
MAX_DATAGRAMS = MAX_TRAINS * MAX_TRAIN_PACKETS
"""Datagrams of a drain: no limit beside the one of trains, unless the caller sets one."""
MAX_REFUSALS = 256
"""Destinations that are remembered to refuse trains; forgetting one costs one failed call."""

_ROOM = 1 << 16
"""The longest train, and the longest datagram, that one receive can return: 64 KiB, as UDP lengths have 16 bits."""
_DRAIN_BYTES = 8 * _ROOM
"""Half a megabyte: about a millisecond of work, and it stays in the CPU cache until it is read."""
_I64 = np.dtype(np.int64)
_LINUX = sys.platform.startswith("linux")
# Older versions of Python do not define these; the numbers are those of Linux.
_SOL_UDP = getattr(socket, "SOL_UDP", 17)
_UDP_SEGMENT = getattr(socket, "UDP_SEGMENT", 103)
_UDP_GRO = getattr(socket, "UDP_GRO", 104)
_SO_RXQ_OVFL = getattr(socket, "SO_RXQ_OVFL", 40)
# IP_RECVERR and IPV6_RECVERR, with the level of each.
_RECVERR = {socket.AF_INET: (socket.IPPROTO_IP, 11), socket.AF_INET6: (socket.IPPROTO_IPV6, 25)}
_ERROR_KINDS = {option for _, option in _RECVERR.values()}
_FROM_US = 1  # SO_EE_ORIGIN_LOCAL in linux/errqueue.h
_MSG_ERRQUEUE = getattr(socket, "MSG_ERRQUEUE", 0x2000)
MAX_REFUSED = 64
"""Addresses that refused a datagram, kept until they are taken."""
_ERROR_BYTES = 512
"""Room for the control messages of a report: the error, the address of who reported it, and those enabled above."""
_ANCILLARY_BYTES = 64
"""Room for the two control messages that are enabled: segment length and overflow count."""

_LATER = {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS, errno.ENOMEM}
"""The send buffer is full: try again when the socket is writable."""
_NO_TRAIN = {errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.EOPNOTSUPP, errno.ENOPROTOOPT}
"""The train was refused, not its datagrams: longer than the path allows, or a device without checksum offload."""
_OUR_FAULT = {errno.EBADF, errno.ENOTSOCK}
_REASONS = {
    errno.ECONNREFUSED: Reason.UNSENT_REFUSED,
    errno.ECONNRESET: Reason.UNSENT_REFUSED,
    errno.EHOSTUNREACH: Reason.UNSENT_UNREACHABLE,
    errno.ENETUNREACH: Reason.UNSENT_UNREACHABLE,
    errno.EHOSTDOWN: Reason.UNSENT_UNREACHABLE,
    errno.ENETDOWN: Reason.UNSENT_UNREACHABLE,
    errno.EADDRNOTAVAIL: Reason.UNSENT_UNREACHABLE,
    errno.EMSGSIZE: Reason.UNSENT_TOO_LONG,
    errno.EPERM: Reason.UNSENT_FORBIDDEN,
    errno.EACCES: Reason.UNSENT_FORBIDDEN,
}
"""The drop reason of a datagram that could not be sent, by error number; any other error is UNSENT_OTHER, or
RECEIVE_FAILED when receiving."""


BOUNDS = (
    Bound(
        name="refused_segments",
        what="destinations that refuse long trains",
        by=By.PEER,
        per_node=MAX_REFUSALS,
        full="the oldest goes",
        counter=forgotten("refused_segments"),
    ),
    Bound(
        name="refused_addresses",
        what="addresses at which nothing listens",
        by=By.OUTSIDER,
        per_node=MAX_REFUSED,
        full="further ones wait for the next look",
        counter=Reason.UNSENT_REFUSED,
    ),
)


class UdpSocket:
    """A bound, non-blocking UDP socket; open one with `bind`, close it when done."""

    __slots__ = (
        "_array",
        "_buffer",
        "_overflows",
        "_parts",
        "_refused",
        "_socket",
        "counters",
        "drained_at",
        "emptied",
        "no_listener",
        "receives_trains",
        "sends_trains",
    )

    def __init__(
        self,
        sock: socket.socket,
        *,
        counters: Counters | None = None,
        trains: bool = True,
        buffer: memoryview | None = None,
    ) -> None:
        """Take over a bound socket; `buffer` is that of another socket, if both are drained in turn."""
        sock.setblocking(False)
        self._socket = sock
        self._parts = 4 if sock.family == socket.AF_INET6 else 2
        self.counters = Counters() if counters is None else counters
        self._buffer = memoryview(bytearray(_DRAIN_BYTES)) if buffer is None else buffer
        self._array = np.frombuffer(self._buffer, np.uint8)
        self._overflows = 0
        self._refused: dict[Address, int] = {}
        self.no_listener: dict[Address, None] = {}
        """Addresses at which nothing listens, as their machines reported; `take_refused` returns and removes them."""
        self.emptied = False
        """Whether the last drain received everything that had arrived."""
        self.drained_at = -inf
        """When it was last read, by the clock of the driver."""
        self.receives_trains = trains and _LINUX and _enable(sock, _SOL_UDP, _UDP_GRO, 1)
        """Whether one receive may return many datagrams."""
        # A default segment of 0 changes nothing; setting it shows whether the kernel supports the option.
        self.sends_trains = trains and _LINUX and _enable(sock, _SOL_UDP, _UDP_SEGMENT, 0)
        """Whether one send may carry many datagrams."""
        if self.receives_trains:
            _enable(sock, socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
        if _LINUX:
            for level, option in (_RECVERR[socket.AF_INET], _RECVERR[sock.family]):
                _enable(sock, level, option, 1)

    @classmethod
    def bind(
        cls,
        host: str,
        port: int,
        *,
        receive_buffer: int = BUFFER_BYTES,
        counters: Counters | None = None,
        trains: bool = True,
    ) -> Self:
        """Open a socket on an address of this machine; port 0 lets the system choose.

        The port is not shared: a second node on it is refused, and a restarted one gets it back at once. A host name is
        looked up, which may block. Without `trains`, datagrams are sent and received one by one, as on a system that
        does not support trains. Raises ConfigError if the address cannot be used.
        """
        family, address = _look_up(host, port, key="bind")
        sock = None
        try:
            sock = socket.socket(family, socket.SOCK_DGRAM)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            _grow(sock, socket.SO_RCVBUF, receive_buffer)
            _grow(sock, socket.SO_SNDBUF, BUFFER_BYTES)
            sock.bind(address)
        except OSError as error:
            if sock is not None:
                sock.close()
            raise ConfigError("bind", _explain(error, host, port)) from error
        return cls(sock, counters=counters, trains=trains)

    def open_lane(self, address: Any) -> UdpSocket | None:
        """Open a second socket on this port, which receives what comes from one address; None if the system refuses.

        The kernel hands a datagram to the socket that is connected to its source, if there is one, so those of this
        address have a receive buffer of their own. Both sockets share the buffer that drains fill.
        """
        if not _LINUX:  # elsewhere, which of two sockets gets a datagram is not defined
            return None
        try:
            lane = socket.socket(self._socket.family, socket.SOCK_DGRAM)
        except OSError:  # no file handle is left
            return None
        try:
            if lane.family == socket.AF_INET6:
                lane.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            _grow(lane, socket.SO_RCVBUF, self.receive_buffer)
            lane.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Both must allow it while the second is bound, and only then: no other program may share the port.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            lane.bind(self._socket.getsockname())
            lane.connect(address)
        except OSError:
            lane.close()
            return None
        finally:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        return UdpSocket(lane, counters=self.counters, trains=self.receives_trains, buffer=self._buffer)

    @property
    def address(self) -> UdpAddress:
        """The address that this socket is bound to."""
        address: UdpAddress = self._socket.getsockname()
        return address

    @property
    def receive_buffer(self) -> int:
        """The receive buffer in bytes of datagrams, as granted by the kernel, which may be less than was asked for.

        It holds that much in datagrams of a kilobyte and more; the kernel charges nearly as much for a small one.
        """
        granted = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        return granted // 2 if _LINUX else granted  # Linux reports twice the size, half of it for its own bookkeeping

    def fileno(self) -> int:
        """Return the file descriptor, for `add_reader` and `add_writer`; -1 if closed."""
        return self._socket.fileno()

    def resolve(self, host: str, port: int) -> UdpAddress:
        """Return the address of a host in the form that this socket uses; looking up a name may block.

        Raises ConfigError for a host that does not exist or that has no address of this socket's family.
        """
        return _look_up(host, port, key="address", family=self._socket.family)[1]

    def drain(
        self, max_trains: int = MAX_TRAINS, max_datagrams: int = MAX_DATAGRAMS
    ) -> PacketBatch | None:  # hot: bench_stream
        """Receive what has arrived: at most `max_trains` trains, so that one socket cannot starve the loop.

        Beyond `max_datagrams`, no further train is begun. A datagram that came alone is a train of one. The batch is in a buffer of the socket, which the caller may write
        to and which is valid until the next drain: copy what must live longer. Return None if nothing has arrived.
        """
        edges: list[int] = []
        runs: list[tuple[Address, int]] = []
        buffer, receive = self._buffer, self._receive_train if self.receives_trains else self._receive_single
        end = count = 0
        last: Address = None
        self.emptied = False
        for _ in range(max_trains):
            if end > _DRAIN_BYTES - _ROOM or len(edges) >= max_datagrams:
                break
            try:
                size, ancillary, source = receive(buffer[end:])
            except BlockingIOError:
                self.emptied = True
                if not edges:
                    self._read_errors()  # they wake the reader too, until they are read
                break
            except OSError as error:
                # Systems report here that an earlier datagram could not be delivered.
                if not self._read_errors():
                    self._give_up(error, 1, Reason.RECEIVE_FAILED)
                continue
            if not size:
                self.counters.count(Reason.EMPTY)
                continue
            if source != last:
                if count:
                    runs.append((last, count))
                last, count = source, 0
            if ancillary:
                places = range(end, end + size, self._segment(ancillary, size))
                edges += places
                count += len(places)
            else:
                edges.append(end)
                count += 1
            end += size
        if not edges:
            return None
        runs.append((last, count))
        edges.append(end)
        bounds = np.array(edges, _I64)
        return PacketBatch(self._array[:end], bounds[:-1], bounds[1:] - bounds[:-1], runs)

    def receive_first(self) -> tuple[Address, memoryview] | PacketBatch | None:  # hot: bench_publish
        """Receive what came first: one datagram as it is, in the buffer that `drain` uses, or a train as a batch.

        For a socket that was quiet: what follows is usually nothing, and asking for it costs as much as this call.
        """
        if not self.receives_trains:
            return self.drain()
        self.emptied = False
        try:
            size, ancillary, _, source = self._socket.recvmsg_into((self._buffer,), _ANCILLARY_BYTES)
        except OSError:
            return self.drain()  # which finds out what it means
        if not size:
            self.counters.count(Reason.EMPTY)
            return None
        segment = self._segment(ancillary, size) if ancillary else size
        if segment >= size:
            return source, self._buffer[:size]
        bounds = np.array([*range(0, size, segment), size], _I64)
        return PacketBatch(self._array[:size], bounds[:-1], bounds[1:] - bounds[:-1], [(source, len(bounds) - 1)])

    def send(self, trains: Sequence[Train]) -> Sequence[Train]:  # hot: bench_stream
        """Send trains in order; return those that the kernel has no room for now.

        Consecutive trains to one address with datagrams of one length are sent in one call. A datagram has at least one
        byte. What is returned is not copied: leave its data unchanged until it is sent.
        """
        if len(trains) == 1 and len(trains[0].data) <= trains[0].segment:
            return () if self.send_one(trains[0]) else self._send_together(trains)
        at = 0
        while at < len(trains):
            end = _together(trains, at)
            if end == at:  # too long for one call
                trains, at = [*_cut(trains[at]), *trains[at + 1 :]], 0
                continue
            left = self._send_together(trains[at:end])
            if left:
                return [*left, *trains[end:]]
            at = end
        return ()

    def send_one(self, train: Train) -> bool:  # hot: bench_publish
        """Send a train of one datagram, and return whether that worked at once; if not, `send` finds out why."""
        address: Any = train.address
        if len(address) != self._parts or len(train.data) > train.segment:
            return False
        try:
            self._socket.sendto(train.data, address)
        except OSError:
            return False
        return True

    def take_refused(self) -> list[Address]:
        """Return the addresses at which nothing listens, as their machines reported since the last call."""
        found = list(self.no_listener)
        self.no_listener.clear()
        return found

    def close(self) -> None:
        """Close the socket; closing twice is fine."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive_train(self, room: memoryview) -> tuple[int, Ancillary, Address]:
        """Receive one train; return its size, its control messages and its source."""
        size, ancillary, _, source = self._socket.recvmsg_into((room,), _ANCILLARY_BYTES)
        return size, ancillary, source

    def _receive_single(self, room: memoryview) -> tuple[int, Ancillary, Address]:
        """Receive one datagram, if the kernel does not support trains."""
        size, source = self._socket.recvfrom_into(room)
        return size, (), source

    def _segment(self, ancillary: Ancillary, size: int) -> int:
        """Return the length of a train's datagrams, and count those that were lost before it."""
        segment = size
        for level, kind, value in ancillary:
            if level == _SOL_UDP and kind == _UDP_GRO:
                segment = int.from_bytes(value[:4], sys.byteorder) or size
            elif level == socket.SOL_SOCKET and kind == _SO_RXQ_OVFL:
                self._note_overflow(int.from_bytes(value[:4], sys.byteorder))
        return segment

    def _note_overflow(self, total: int) -> None:
        """Count what the kernel dropped because the buffer was full; a train counts once."""
        self.counters.count(Reason.RECEIVE_BUFFER_FULL, (total - self._overflows) & 0xFFFFFFFF)
        self._overflows = total

    def _send_together(self, trains: Sequence[Train]) -> Sequence[Train]:
        """Send trains that fit one call; return what is left if the send buffer is full."""
        first = trains[0]
        address: Any = first.address
        if len(address) != self._parts:  # a peer may name an address that this socket cannot reach
            self.counters.count(Reason.UNSENT_WRONG_FAMILY, _count(trains))
            return ()
        single = len(trains) == 1 and len(first.data) <= first.segment
        if single or not self._takes_trains(address, first.segment):
            return self._send_singly(trains)
        ancillary = [(_SOL_UDP, _UDP_SEGMENT, first.segment.to_bytes(2, sys.byteorder))]
        try:
            self._sendmsg([train.data for train in trains], ancillary, address)
        except OSError as error:
            if error.errno in _LATER:
                return trains
            if error.errno in _NO_TRAIN:
                self._remember_refusal(address, 1 if error.errno == errno.EIO else first.segment)
                return self._send_singly(trains)
            self._give_up(error, _count(trains))
        return ()

    def _send_singly(self, trains: Sequence[Train]) -> Sequence[Train]:
        """Send datagrams one by one; return what is left if the send buffer is full."""
        for number, train in enumerate(trains):
            address: Any = train.address
            if len(train.data) <= train.segment:
                try:
                    self._sendto(train.data, address)
                except OSError as error:
                    if error.errno in _LATER:
                        return trains[number:]
                    self._give_up(error, 1)
                continue
            view = memoryview(train.data)
            for start in range(0, len(view), train.segment):
                try:
                    self._sendto(view[start : start + train.segment], address)
                except OSError as error:
                    if error.errno in _LATER:
                        return [Train(address, view[start:], train.segment), *trains[number + 1 :]]
                    self._give_up(error, 1)
        return ()

    def _sendto(self, data: Any, address: Any) -> None:
        try:
            self._socket.sendto(data, address)
        except OSError as error:
            if error.errno in _LATER or not self._read_errors():
                raise
            self._socket.sendto(data, address)  # the error was that of an earlier datagram

    def _sendmsg(self, parts: list[Any], ancillary: list[tuple[int, int, bytes]], address: Any) -> None:
        try:
            self._socket.sendmsg(parts, ancillary, 0, address)
        except OSError as error:
            if error.errno in _LATER or not self._read_errors():
                raise
            self._socket.sendmsg(parts, ancillary, 0, address)  # the error was that of an earlier datagram

    def _read_errors(self) -> int:
        """Read the reports of other machines about earlier datagrams, count them, and return their number."""
        number = 0
        for _ in range(MAX_REFUSED if _LINUX else 0):
            try:
                # The source of a report is the address that the datagram was for.
                _, ancillary, _, address = self._socket.recvmsg(0, _ERROR_BYTES, _MSG_ERRQUEUE)
            except OSError:
                break
            for _, kind, report in ancillary:
                # struct sock_extended_err: 4 bytes of the error number, then one that says who reported it.
                if kind not in _ERROR_KINDS or report[4] == _FROM_US:  # our own is the result of the call as well
                    continue
                number += 1
                code = int.from_bytes(report[:4], sys.byteorder)
                self.counters.count(_REASONS.get(code, Reason.UNSENT_OTHER))
                if code == errno.ECONNREFUSED and len(self.no_listener) < MAX_REFUSED:
                    self.no_listener[address] = None
        return number

    def _takes_trains(self, address: Address, segment: int) -> bool:
        return self.sends_trains and segment < self._refused.get(address, segment + 1)

    def _remember_refusal(self, address: Address, segment: int) -> None:
        """Remember the shortest segment that a destination refused: longer ones will be refused too."""
        known = self._refused.pop(address, segment)
        if len(self._refused) >= MAX_REFUSALS:
            del self._refused[next(iter(self._refused))]
            self.counters.add("forget", "refused_segments")
        self._refused[address] = min(known, segment)

    def _give_up(self, error: OSError, datagrams: int, otherwise: Reason = Reason.UNSENT_OTHER) -> None:
        if error.errno in _OUR_FAULT:
            raise error
        self.counters.count(_REASONS.get(error.errno or 0, otherwise), datagrams)


def _cut(train: Train) -> Iterator[Train]:
    """Split a train that is too long for one call; there are seldom any."""
    view = memoryview(train.data)
    step = train.segment * max(1, min(MAX_TRAIN_PACKETS, MAX_TRAIN_BYTES // train.segment))
    return (Train(train.address, view[at : at + step], train.segment) for at in range(0, len(view), step))


def _together(trains: Sequence[Train], first: int) -> int:
    """Return the end of the run of trains that can be sent in one call with the first; the first itself if it is too long."""
    head = trains[first]
    address, segment = head.address, head.segment
    last = len(head.data)
    room = min(MAX_TRAIN_BYTES, MAX_TRAIN_PACKETS * segment) - last
    if room < 0 and last > segment:
        return first
    end = first + 1
    # A datagram shorter than the segment ends a train.
    while end < len(trains) and last % segment == 0:
        train = trains[end]
        last = len(train.data)
        if train.segment != segment or last > room or train.address != address:
            break
        room -= last
        end += 1
    return end


def _count(trains: Sequence[Train]) -> int:
    return sum(-(-len(train.data) // train.segment) for train in trains)


def _enable(sock: socket.socket, level: int, option: int, value: int) -> bool:
    try:
        sock.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def _grow(sock: socket.socket, option: int, size: int) -> None:
    """Request a buffer size; try smaller ones on systems that refuse a large one instead of limiting it."""
    while size > 0 and not _enable(sock, socket.SOL_SOCKET, option, size):
        size //= 2


def _look_up(
    host: str, port: int, *, key: str, family: int = socket.AF_UNSPEC
) -> tuple[socket.AddressFamily, UdpAddress]:
    if not 0 <= port <= 0xFFFF:
        raise ConfigError(key, f"port must be from 1 to 65535, or 0 to let the system choose, got {port}")
    if not host:
        raise ConfigError(key, "the host is missing; give an address such as 127.0.0.1, 0.0.0.0 or ::")
    flags = socket.AI_V4MAPPED if family == socket.AF_INET6 else 0
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_DGRAM, flags=flags)
    except (OSError, UnicodeError) as error:
        needed = {socket.AF_INET: "IPv4 ", socket.AF_INET6: "IPv6 "}.get(socket.AddressFamily(family), "")
        raise ConfigError(key, f"no {needed}address found for {host!r}; check the spelling") from error
    family, _, _, _, address = found[0]
    return socket.AddressFamily(family), address  # type: ignore[return-value]  # its bytes form is not UDP's


def _explain(error: OSError, host: str, port: int) -> str:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{where} is used by another program; stop it, or choose another port"
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine; use one of its own, or 0.0.0.0 or :: for all of them"
        case errno.EACCES:
            return f"{where} is not allowed for this user; choose a port above 1023"
        case errno.EAFNOSUPPORT:
            return f"this machine does not support addresses like {host}; use another one"
    return f"{where} cannot be opened: {error.strerror or error}"
