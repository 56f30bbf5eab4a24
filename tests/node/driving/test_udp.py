"""Real sockets on loopback, and a plain Python socket as the other end; a faulty kernel is played by a subclass."""

import errno
import select
import socket  # noqa: TID251 - the other end of the socket under test
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.packets import Address, PacketBatch, Train
from meshbus.engine.session.link import MAX_TRAIN_BYTES, MAX_TRAIN_PACKETS
from meshbus.errors import ConfigError
from meshbus.node.driving import udp
from meshbus.node.driving.udp import BUFFER_BYTES, MAX_REFUSALS, MAX_TRAINS, UdpSocket
from tests.patience import PATIENCE_S

needs_trains = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="UDP_SEGMENT and UDP_GRO are Linux's")


def _has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind(("::1", 0))
        except OSError:
            return False
        return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
HOSTS = ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)]
NOWHERE = ("127.0.0.1", 9)


@pytest.fixture
def ours() -> Iterator[UdpSocket]:
    with UdpSocket.bind("127.0.0.1", 0) as sock:
        yield sock


@pytest.fixture
def theirs() -> Iterator[UdpSocket]:
    with UdpSocket.bind("127.0.0.1", 0) as sock:
        yield sock


@pytest.fixture
def plain() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(5)
        yield sock


class Kernel(socket.socket):
    """A socket that fails as told: each send takes the next error number, 0 for success."""

    def __init__(self, *faults: int, always: int = 0) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_DGRAM)
        self.bind(("127.0.0.1", 0))
        self.faults = list(faults)
        self.always = always
        self.singles: list[bytes] = []
        self.trains: list[tuple[bytes, int]] = []

    def fail(self) -> None:
        fault = self.faults.pop(0) if self.faults else self.always
        if fault:
            raise OSError(fault, "as told")

    def sendto(self, data: Any, *_: object) -> int:
        self.fail()
        self.singles.append(bytes(data))
        return len(self.singles[-1])

    def sendmsg(self, buffers: Any, ancillary: Any = (), *__: object) -> int:
        self.fail()
        [(_, _, segment)] = ancillary
        self.trains.append((b"".join(buffers), int.from_bytes(segment, sys.byteorder)))
        return len(self.trains[-1][0])


def train(address: Address, *datagrams: bytes) -> Train:
    return Train(address, b"".join(datagrams), len(datagrams[0]))


def numbered(count: int, size: int) -> list[bytes]:
    return [n.to_bytes(4, "little") + bytes(size - 4) for n in range(count)]


def cut(batch: PacketBatch) -> list[bytes]:
    places = zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True)
    return [batch.data[start : start + length].tobytes() for start, length in places]


def receive(sock: UdpSocket, count: int) -> list[tuple[object, bytes]]:
    """Drain until `count` datagrams are there, each with its source."""
    got: list[tuple[object, bytes]] = []
    while len(got) < count and select.select([sock], [], [], 5)[0]:
        batch = sock.drain()
        if batch is not None:
            sources = [source for source, packets in batch.runs for _ in range(packets)]
            got += zip(sources, cut(batch), strict=True)
    return got


def send_all(sock: UdpSocket, trains: Sequence[Train]) -> None:
    while trains := sock.send(trains):
        select.select([], [sock], [], 5)


# ── opening ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", HOSTS)
def test_port_0_is_chosen_by_the_system_and_shown_in_the_address(host: str) -> None:
    with UdpSocket.bind(host, 0) as sock:
        assert sock.address[0] == host
        assert sock.address[1] > 0
        assert len(sock.address) == (4 if ":" in host else 2)
        assert sock.fileno() >= 0


def test_the_receive_buffer_size_is_the_granted_one() -> None:
    with UdpSocket.bind("127.0.0.1", 0, receive_buffer=100_000) as small:
        assert small.receive_buffer == 100_000
    with UdpSocket.bind("127.0.0.1", 0, receive_buffer=1 << 30) as greedy:
        assert 65_536 <= greedy.receive_buffer < 1 << 30


def test_a_refused_buffer_size_is_halved_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Stingy(socket.socket):
        def setsockopt(self, *args: Any) -> None:
            asked.append(args[-1])
            if args[-1] > 100_000:
                raise OSError(errno.ENOBUFS, "too much")

    with Stingy(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        udp._grow(sock, socket.SO_RCVBUF, 300_000)
    assert asked == [300_000, 150_000, 75_000]


@pytest.mark.parametrize("host", HOSTS)
def test_the_port_of_a_closed_socket_is_free_at_once(host: str, plain: socket.socket) -> None:
    first = UdpSocket.bind(host, 0)
    port = first.address[1]
    first.send([train(first.address, b"never read")])
    first.close()
    first.close()
    assert first.fileno() == -1
    with UdpSocket.bind(host, port) as second:
        assert second.address[1] == port
        assert second.drain() is None


def test_a_port_in_use_is_a_config_error(ours: UdpSocket) -> None:
    port = ours.address[1]
    with pytest.raises(ConfigError, match=f"bind: 127.0.0.1:{port} is used by another program; stop it, or choose"):
        UdpSocket.bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "sentence"),
    [
        ("no..such..host", 1, "no address found for 'no..such..host'; check the spelling"),
        ("", 1, "the host is missing"),
        ("a" * 300, 1, "no address found"),
        ("192.0.2.1", 0, "192.0.2.1 is not an address of this machine"),
        ("127.0.0.1", 65_536, "or 0 to let the system choose, got 65536"),
        ("127.0.0.1", -1, "or 0 to let the system choose, got -1"),
    ],
)
def test_the_error_names_an_invalid_address(host: str, port: int, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        UdpSocket.bind(host, port)
    assert caught.value.key == "bind"
    assert sentence in caught.value.problem


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (errno.EACCES, "[::1]:80 is not allowed for this user"),
        (errno.EAFNOSUPPORT, "does not support addresses like ::1"),
        (errno.EMFILE, "[::1]:80 cannot be opened: too many"),
    ],
)
def test_other_errors_of_bind_are_config_errors(fault: int, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(fault, "too many")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(ConfigError) as caught:
        UdpSocket.bind("::1", 80)
    assert sentence in caught.value.problem


# ── addresses ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", HOSTS)
def test_a_resolved_address_equals_the_source_of_packets(host: str) -> None:
    with UdpSocket.bind(host, 0) as ours, UdpSocket.bind(host, 0) as theirs:
        theirs.send([train(ours.address, b"hello")])
        [(source, _)] = receive(ours, 1)
        assert source == ours.resolve(host, theirs.address[1]) == theirs.address


@needs_ipv6
def test_one_socket_serves_both_families() -> None:
    with UdpSocket.bind("::", 0) as both, UdpSocket.bind("127.0.0.1", 0) as four:
        four.send([train(("127.0.0.1", both.address[1]), b"over", b"IPv4")])
        got = receive(both, 2)
        back = both.resolve("127.0.0.1", four.address[1])
        assert got == [(back, b"over"), (back, b"IPv4")]
        both.send([train(back, b"and", b"bac", b"k")])
        assert [data for _, data in receive(four, 3)] == [b"and", b"bac", b"k"]


def test_a_host_of_the_other_family_is_refused(ours: UdpSocket) -> None:
    with pytest.raises(ConfigError, match="address: no IPv4 address found for '::1'"):
        ours.resolve("::1", 9000)


# ── receiving ───────────────────────────────────────────────────────────────────────────────


def test_drain_returns_none_if_nothing_arrived(ours: UdpSocket) -> None:
    assert ours.drain() is None


@pytest.mark.parametrize("trains", [True, False])
def test_mixed_sizes_from_several_sources_arrive_whole(trains: bool, plain: socket.socket) -> None:
    rng = np.random.default_rng(1)
    sent: list[tuple[object, bytes]] = []
    with UdpSocket.bind("127.0.0.1", 0, trains=trains) as ours, UdpSocket.bind("127.0.0.1", 0) as other:
        for size in rng.integers(1, 8193, 60).tolist():
            data = rng.bytes(size)
            sender = other.address if size % 3 else plain.getsockname()
            if size % 3:
                other.send([train(ours.address, data)])
            else:
                plain.sendto(data, ours.address)
            sent.append((sender, data))
        assert receive(ours, 60) == sent


def test_runs_count_the_packets_of_each_source(ours: UdpSocket, theirs: UdpSocket, plain: socket.socket) -> None:
    theirs.send([train(ours.address, *numbered(3, 100))])
    theirs.send([train(ours.address, b"one more")])
    plain.sendto(b"plain", ours.address)
    theirs.send([train(ours.address, b"again")])
    batch = ours.drain()
    assert batch is not None
    assert batch.runs == [(theirs.address, 4), (plain.getsockname(), 1), (theirs.address, 1)]
    assert len(batch) == 6


def test_a_drain_is_bounded(ours: UdpSocket, plain: socket.socket) -> None:
    for n in range(MAX_TRAINS + 20):
        plain.sendto(bytes([n]), ours.address)
    first, second, third, fourth = ours.drain(), ours.drain(8), ours.drain(), ours.drain()
    assert [len(batch) for batch in (first, second, third) if batch] == [MAX_TRAINS, 8, 12]
    assert fourth is None


def test_a_drain_ends_when_its_buffer_is_full(ours: UdpSocket, plain: socket.socket) -> None:
    for n in range(12):
        plain.sendto(bytes([n]) * 60_000, ours.address)
    batch = ours.drain()
    assert batch is not None
    assert 8 <= len(batch) < 12
    got = cut(batch)
    got += [data for _, data in receive(ours, 12 - len(batch))]
    assert [data[0] for data in got] == list(range(12))


def test_the_buffer_is_shared_and_writable_until_the_next_drain(ours: UdpSocket, plain: socket.socket) -> None:
    plain.sendto(b"first", ours.address)
    one = ours.drain()
    assert one is not None
    one.data[:] = 0
    plain.sendto(b"other", ours.address)
    two = ours.drain()
    assert two is not None
    assert cut(one) == cut(two) == [b"other"]


def test_an_empty_datagram_is_counted_and_does_not_end_the_drain(ours: UdpSocket, plain: socket.socket) -> None:
    for data in (b"a", b"", b"b"):
        plain.sendto(data, ours.address)
    batch = ours.drain()
    assert batch is not None
    assert cut(batch) == [b"a", b"b"]
    assert ours.counters.snapshot() == {"drop": {"empty": 1}}


def test_datagrams_dropped_by_the_kernel_are_counted(plain: socket.socket) -> None:
    with UdpSocket.bind("127.0.0.1", 0, receive_buffer=10_000) as ours:
        if not ours.receives_trains:
            pytest.skip("this system does not tell")
        for _ in range(100):
            plain.sendto(bytes(1000), ours.address)
        arrived = len(receive(ours, 1))
        assert 0 < arrived < 100
        plain.sendto(b"tells", ours.address)
        assert receive(ours, 1) == [(plain.getsockname(), b"tells")]
        assert ours.counters.snapshot() == {"drop": {"receive_buffer_full": 100 - arrived}}


def test_an_error_of_a_receive_is_counted_and_skipped(plain: socket.socket) -> None:
    class Complaining(Kernel):
        def recvfrom_into(self, *args: Any) -> tuple[int, Any]:
            self.fail()
            return super().recvfrom_into(*args)

    with UdpSocket(Complaining(errno.ECONNRESET, errno.ENOMEM), trains=False) as ours:
        plain.sendto(b"after", ours.address)
        batch = ours.drain()
        assert batch is not None
        assert cut(batch) == [b"after"]
        assert ours.counters.snapshot() == {"drop": {"receive_failed": 1, "unsent_refused": 1}}


# ── sending ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("out", [True, False])
@pytest.mark.parametrize("into", [True, False])
def test_a_train_arrives_as_its_datagrams(host: str, out: bool, into: bool) -> None:
    with UdpSocket.bind(host, 0, trains=out) as ours, UdpSocket.bind(host, 0, trains=into) as theirs:
        datagrams = [*numbered(7, 8192), b"shorter"]
        assert ours.send([train(theirs.address, *datagrams)]) == ()
        assert receive(theirs, 8) == [(ours.address, data) for data in datagrams]


def test_a_plain_socket_receives_a_train_as_datagrams(ours: UdpSocket, plain: socket.socket) -> None:
    datagrams = [*numbered(40, 1452), b"end"]
    ours.send([train(plain.getsockname(), *datagrams)])
    assert [plain.recv(9000) for _ in datagrams] == datagrams


@needs_trains
def test_trains_cross_the_kernel_in_one_call(ours: UdpSocket, theirs: UdpSocket) -> None:
    assert ours.sends_trains
    assert theirs.receives_trains
    ours.send([train(theirs.address, *numbered(7, 8192))])
    batch = theirs.drain(max_trains=1)
    assert batch is not None
    assert len(batch) == 7


@needs_trains
def test_consecutive_datagrams_of_equal_length_are_sent_together() -> None:
    with UdpSocket(kernel := Kernel()) as ours:
        single = [train(NOWHERE, data) for data in numbered(70, 1000)]
        elsewhere = train(("127.0.0.1", 10), bytes(1000))
        ours.send([*single, elsewhere, train(NOWHERE, bytes(1000), b"short"), train(NOWHERE, bytes(1000))])
    assert [(len(data), segment) for data, segment in kernel.trains] == [(64_000, 1000), (6000, 1000), (1005, 1000)]
    assert kernel.trains[0][0] + kernel.trains[1][0] == b"".join(numbered(70, 1000))
    assert len(kernel.singles) == 2


@needs_trains
@pytest.mark.parametrize(("size", "count"), [(100, 300), (8192, 30), (65_000, 2), (33_000, 3), (1, 65)])
def test_a_long_train_is_split_at_the_limit_of_the_kernel(size: int, count: int) -> None:
    datagrams = [bytes([n % 256]) * size for n in range(count)]
    with UdpSocket(kernel := Kernel()) as ours:
        assert ours.send([train(NOWHERE, *datagrams, b"")]) == ()
    sent = [*kernel.trains, *((data, size) for data in kernel.singles)]
    assert all(len(data) <= MAX_TRAIN_BYTES and len(data) <= MAX_TRAIN_PACKETS * segment for data, segment in sent)
    assert sorted(b"".join(data for data, _ in sent)) == sorted(b"".join(datagrams))


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("fault", [errno.EAGAIN, errno.ENOBUFS])
def test_unsent_trains_are_returned_in_order(trains: bool, fault: int) -> None:
    datagrams = numbered(200, 1000)
    with UdpSocket(kernel := Kernel(0, 0, fault), trains=trains) as ours:
        left = ours.send([train(NOWHERE, *datagrams), train(("127.0.0.1", 10), b"last")])
        assert left
        assert left[-1] == train(("127.0.0.1", 10), b"last")
        assert ours.send(left) == ()
        assert not ours.counters.snapshot()
    sent = [data[at : at + size] for data, size in kernel.trains for at in range(0, len(data), size)]
    assert (sent + kernel.singles)[:200] == datagrams
    assert kernel.singles[-1] == b"last"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (errno.ECONNREFUSED, "unsent_refused"),
        (errno.EHOSTUNREACH, "unsent_unreachable"),
        (errno.ENETUNREACH, "unsent_unreachable"),
        (errno.EPERM, "unsent_forbidden"),
        (errno.EMSGSIZE, "unsent_too_long"),
        (errno.ENODEV, "unsent_other"),
    ],
)
@pytest.mark.parametrize("trains", [True, False])
def test_a_send_error_is_counted_and_the_rest_is_sent(fault: int, reason: str, trains: bool) -> None:
    with UdpSocket(Kernel(always=fault), trains=trains) as ours:
        assert ours.send([train(NOWHERE, *numbered(5, 100)), train(NOWHERE, b"one")]) == ()
        assert ours.counters.snapshot() == {"drop": {reason: 6}}


def test_real_send_errors_do_not_raise(ours: UdpSocket) -> None:
    too_long = Train(NOWHERE, bytes(65_508), 65_508)
    no_port = train(("127.0.0.1", 0), b"x", b"y")
    other_family = train(("::1", 9, 0, 0), b"x")
    assert ours.send([too_long, no_port, other_family]) == ()
    expected = {"unsent_other": 2, "unsent_too_long": 1, "unsent_wrong_family": 1}
    assert ours.counters.snapshot() == {"drop": expected}


def test_using_a_closed_socket_raises(ours: UdpSocket) -> None:
    ours.close()
    with pytest.raises(OSError, match="descriptor"):
        ours.send([train(NOWHERE, b"x")])
    with pytest.raises(OSError, match="descriptor"):
        ours.drain()


# ── where trains are refused ────────────────────────────────────────────────────────────────


@needs_trains
@pytest.mark.parametrize("fault", [errno.EINVAL, errno.EIO])
def test_a_refused_train_is_sent_as_single_datagrams_from_then_on(fault: int) -> None:
    with UdpSocket(kernel := Kernel(fault)) as ours:
        ours.send([train(NOWHERE, *numbered(3, 2000))])
        ours.send([train(NOWHERE, *numbered(3, 2000))])
        assert kernel.singles == 2 * numbered(3, 2000)
        assert not kernel.trains
        assert not ours.counters.snapshot()


@needs_trains
def test_a_path_that_refuses_long_segments_still_gets_trains_of_short_ones() -> None:
    with UdpSocket(kernel := Kernel(errno.EINVAL)) as ours:
        ours.send([train(NOWHERE, *numbered(3, 2000))])
        ours.send([train(NOWHERE, *numbered(3, 1452))])
        ours.send([train(NOWHERE, *numbered(3, 2001))])
        ours.send([train(("127.0.0.1", 10), *numbered(3, 8192))])
    assert [segment for _, segment in kernel.trains] == [1452, 8192]


@needs_trains
def test_a_device_that_refuses_trains_gets_none_of_any_length() -> None:
    with UdpSocket(kernel := Kernel(errno.EIO)) as ours:
        ours.send([train(NOWHERE, *numbered(3, 2000))])
        ours.send([train(NOWHERE, *numbered(3, 4))])
    assert not kernel.trains


@needs_trains
def test_refusals_are_remembered_for_a_bounded_number_of_destinations() -> None:
    with UdpSocket(kernel := Kernel(always=errno.EINVAL)) as ours:
        for port in range(1, MAX_REFUSALS + 11):
            ours.send([train(("127.0.0.1", port), *numbered(2, 100))])
        assert len(ours._refused) == MAX_REFUSALS
        kernel.always = 0
        ours.send([train(("127.0.0.1", MAX_REFUSALS + 10), *numbered(2, 100))])
        assert not kernel.trains
        ours.send([train(("127.0.0.1", 1), *numbered(2, 100))])
        assert len(kernel.trains) == 1


def test_a_system_without_the_socket_options_sends_single_datagrams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp, "_LINUX", False)
    with UdpSocket.bind("127.0.0.1", 0) as ours, UdpSocket.bind("127.0.0.1", 0, counters=Counters()) as theirs:
        assert not ours.sends_trains
        assert not ours.receives_trains
        datagrams = [*numbered(20, 500), b"end"]
        ours.send([train(theirs.address, *datagrams)])
        assert [data for _, data in receive(theirs, 21)] == datagrams
        assert ours.receive_buffer == ours._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def test_a_kernel_that_does_not_know_the_options_is_noticed() -> None:
    class Old(Kernel):
        def setsockopt(self, level: int, *_: object) -> None:
            if level == udp._SOL_UDP:
                raise OSError(errno.ENOPROTOOPT, "unknown")

    with UdpSocket(Old()) as ours:
        assert not ours.sends_trains
        assert not ours.receives_trains


# ── volume ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("trains", [True, False])
def test_a_hundred_thousand_datagrams_arrive_in_order_in_small_bursts(trains: bool) -> None:
    with UdpSocket.bind("127.0.0.1", 0, trains=trains) as ours, UdpSocket.bind("127.0.0.1", 0, trains=trains) as theirs:
        exchange(ours, theirs)


def exchange(ours: UdpSocket, theirs: UdpSocket) -> None:
    total, size = 100_000, 64
    numbers = np.zeros((total, size), np.uint8)
    numbers[:, :4] = np.arange(total, dtype="<u4").view(np.uint8).reshape(total, 4)
    wire = memoryview(numbers.tobytes())
    seen: list[np.ndarray[tuple[int], np.dtype[np.uint32]]] = []
    sent = received = 0
    for burst in accumulate([500] * (total // 500)):
        send_all(ours, [Train(theirs.address, wire[sent * size : burst * size], size)])
        sent = burst
        while received < sent:
            assert select.select([theirs], [], [], 5)[0], f"{sent - received} datagrams are missing"
            batch = theirs.drain()
            assert batch is not None
            rows = batch.data.reshape(-1, size)
            seen.append(np.ascontiguousarray(rows[:, :4]).view("<u4").ravel())
            received += len(batch)
            assert set(batch.lengths.tolist()) == {size}
            assert [packets for _, packets in batch.runs] == [len(batch)]
    assert (np.concatenate(seen) == np.arange(total)).all()
    assert not theirs.counters.snapshot()


# ── nothing listens ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def closed() -> Address:
    """An address on this machine where nothing listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        address: Address = sock.getsockname()
    return address


@needs_trains
def test_a_closed_port_is_reported_and_no_other_datagram_is_lost(
    ours: UdpSocket, theirs: UdpSocket, closed: Address
) -> None:
    for number in range(20):
        assert not ours.send([train(closed, b"lost")])
        assert not ours.send([train(theirs.address, bytes([number]))])
    assert [data for _, data in receive(theirs, 20)] == [bytes([number]) for number in range(20)]
    assert ours.drain() is None
    assert ours.take_refused() == [closed]
    assert not ours.no_listener
    assert ours.counters.get("drop", "unsent_refused") == 20


@needs_trains
def test_a_report_wakes_the_reader_once(ours: UdpSocket, closed: Address) -> None:
    ours.send([train(closed, b"lost")])
    assert select.select([ours], [], [], 5)[0]
    assert ours.drain() is None
    assert not select.select([ours], [], [], 0)[0], "a report that stays unread would keep the loop busy"
    assert ours.take_refused() == [closed]


@needs_trains
def test_a_train_after_a_report_is_sent(ours: UdpSocket, theirs: UdpSocket, closed: Address) -> None:
    ours.send([train(closed, b"lost")])
    datagrams = numbered(8, 100)
    send_all(ours, [train(theirs.address, *datagrams)])
    assert [data for _, data in receive(theirs, 8)] == datagrams
    assert ours.take_refused() == [closed]


@needs_trains
def test_addresses_without_a_listener_are_reported_within_bounds(
    ours: UdpSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp, "MAX_REFUSED", 3)
    with ExitStack() as stack:
        socks = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(8)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        nowhere = [sock.getsockname() for sock in socks]
    for address in nowhere:
        ours.send([train(address, b"lost")])
    ours.drain()
    assert len(ours.take_refused()) == 3


def first_of(sock: UdpSocket) -> tuple[Address, memoryview] | PacketBatch:
    assert select.select([sock.fileno()], [], [], PATIENCE_S)[0]
    first = sock.receive_first()
    assert first is not None
    return first


def test_what_came_first_is_a_datagram_or_a_train() -> None:
    with UdpSocket.bind("127.0.0.1", 0) as receiver, UdpSocket.bind("127.0.0.1", 0) as sender:
        assert receiver.receive_first() is None
        assert sender.send_one(Train(receiver.address, b"single", 6))
        first = first_of(receiver)
        assert isinstance(first, tuple)
        assert (first[0], bytes(first[1])) == (sender.address, b"single")
        assert not sender.send_one(Train(receiver.address, b"train", 2)), "more than one datagram"
        assert not sender.send_one(Train(("::1", 9, 0, 0), b"x", 1)), "an address of another family"
        assert not sender.send([Train(receiver.address, b"abcdefgh", 2)])
        got: list[bytes] = []
        while len(got) < 4:
            batch = first_of(receiver)
            if isinstance(batch, tuple):  # a system without trains
                got.append(bytes(batch[1]))
            else:
                assert batch.runs == [(sender.address, len(batch))]
                got += [bytes(batch.data[at : at + size]) for at, size in zip(batch.starts, batch.lengths, strict=True)]
        assert got == [b"ab", b"cd", b"ef", b"gh"]
