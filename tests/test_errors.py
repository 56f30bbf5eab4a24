"""The error tree: where each class sits, what it says, which fields it carries."""

import inspect
import re
import tomllib

import msgspec
import pytest

from meshbus import errors
from meshbus.errors import (
    AuthError,
    AuthFault,
    Backpressure,
    BadTag,
    ChannelError,
    ChannelFault,
    ConfigError,
    DaemonError,
    DaemonFault,
    DeliveryError,
    Fault,
    HandshakeError,
    HandshakeFault,
    JoinError,
    LocalProtocolError,
    LogError,
    LogFault,
    MalformedPacket,
    MeshError,
    MigrationError,
    MigrationFault,
    PartialDelivery,
    PeerError,
    PeerFault,
    PipelineError,
    PipelineFault,
    ProtocolError,
    RegistryError,
    RegistryFault,
    RemoteProtocolError,
    Replayed,
    ReplicationError,
    ReplicationFault,
    SlowConsumer,
    Timeout,
    UnknownVersion,
)

SAMPLES: list[tuple[MeshError, str, dict[str, object]]] = [
    (ConfigError("node.port", "must be a number"), "node.port: must be a number", {"key": "node.port", "source": ""}),
    (ConfigError("a", "bad", source="x.toml"), "a (from x.toml): bad", {"problem": "bad", "source": "x.toml"}),
    (
        RegistryError(RegistryFault.RESERVED, 0x0900, "is reserved"),
        "subprotocol 0x0900: is reserved",
        {"fault": "reserved", "subprotocol_id": 0x0900},
    ),
    (LocalProtocolError("too long"), "too long", {}),
    (
        DaemonError(DaemonFault.GAP, 0xAB, "event 7 came"),
        "daemon 00000000000000ab: event 7 came",
        {"fault": "gap", "origin": 0xAB},
    ),
    (
        MigrationError(MigrationFault.CANCELED, 0xAB, "cancel requested"),
        "daemon 00000000000000ab: cancel requested",
        {"fault": "canceled", "origin": 0xAB},
    ),
    (MalformedPacket("ack", Fault.TRUNCATED), "ack: truncated", {"what": "ack", "fault": "truncated", "detail": ""}),
    (MalformedPacket("ack", Fault.TRAILING, "2 bytes"), "ack: trailing (2 bytes)", {"detail": "2 bytes"}),
    (UnknownVersion(9), "unsupported packet header version 9; only version 1 is supported", {"version": 9}),
    (
        BadTag(),
        "packet: authentication failed; it is forged or damaged, or the keys differ",
        {"what": "packet"},
    ),
    (Replayed(7), "packet counter 7 repeats, is too old, or jumps too far ahead", {"counter": 7}),
    (HandshakeError(HandshakeFault.TIMEOUT, "no answer"), "no answer", {"fault": "timeout"}),
    (AuthError(AuthFault.EXPIRED, "too late"), "too late", {"fault": "expired"}),
    (JoinError("join_used", "the token was used"), "the token was used", {"reason": "join_used"}),
    (ChannelError(ChannelFault.EMPTY, "", "is empty"), "is empty", {"fault": "empty", "channel": ""}),
    (ChannelError(ChannelFault.UNKNOWN, "a/b", "is unknown"), "channel 'a/b': is unknown", {"channel": "a/b"}),
    (
        Backpressure(10, 20),
        "the stream has 10 bytes of credit left, 20 are needed; send less often, or wait and try again",
        {"credit": 10, "wanted": 20},
    ),
    (
        Backpressure(20, 10),
        "10 bytes wait until the peer has acknowledged what was sent before; send less often, or wait and try again",
        {"credit": 20, "wanted": 10},
    ),
    (
        SlowConsumer("sensors/", 5, 2),
        "subscription 'sensors/' fell behind: 5 events pending, 2 dropped; read faster, or raise max_events or max_bytes",
        {"subscription": "sensors/", "pending": 5, "dropped": 2},
    ),
    (
        PartialDelivery(3, 1, "no link", report="r"),
        "1 of 3 subscribers reached: no link",
        {"attempted": 3, "delivered": 1, "report": "r"},
    ),
    (
        ReplicationError(ReplicationFault.NO_MAJORITY, "alarms", "no majority is up"),
        "alarms: no majority is up",
        {"fault": "no_majority", "channel": "alarms", "problem": "no majority is up"},
    ),
    (PeerError(PeerFault.FAILED, 0xAB), "peer 00000000000000ab has failed", {"fault": "failed", "node_id": 0xAB}),
    (PeerError(PeerFault.UNKNOWN, 1, "connect first"), "peer 0000000000000001 is unknown: connect first", {}),
    (PipelineError(PipelineFault.BAD_TABLE, "no table"), "no table", {"fault": "bad_table"}),
    (LogError(LogFault.RANGE_GONE, "gone", first_available=9), "gone", {"fault": "range_gone", "first_available": 9}),
    (Timeout("ack", 5.0), "ack: no answer within 5 s", {"what": "ack", "seconds": 5.0}),
]


class Versioned(msgspec.Struct):
    version: str


@pytest.mark.parametrize(("error", "message", "fields"), SAMPLES, ids=lambda value: str(value)[:40])
def test_an_error_writes_its_message_and_keeps_its_fields(
    error: MeshError, message: str, fields: dict[str, object]
) -> None:
    assert str(error) == message
    assert {name: getattr(error, name) for name in fields} == fields


def test_every_class_is_sampled_or_a_branch_of_the_tree() -> None:
    branches = {MeshError, ProtocolError, RemoteProtocolError, DeliveryError}
    classes = {value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, MeshError)}
    assert classes - branches == {type(error) for error, _, _ in SAMPLES}


def test_the_drawing_is_the_tree() -> None:
    """Each line of the drawing names classes; their indentation must be their ancestry."""
    parents: list[tuple[int, str]] = []
    drawn = set()
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^ {4}([│ ├└─]*)([A-Z]\w+)(?: |$)", line)
        if not found:
            continue
        depth, name = len(found[1]), found[2]
        parents = [(at, parent) for at, parent in parents if at < depth]
        cls = getattr(errors, name)
        if parents:
            assert cls.__mro__[1].__name__ == parents[-1][1], f"{name} is drawn below {parents[-1][1]}"
        parents.append((depth, name))
        drawn.add(cls)
    assert drawn == {
        value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, MeshError)
    }


def test_a_timeout_is_caught_as_the_builtin_one() -> None:
    with pytest.raises(TimeoutError):
        raise Timeout("ack", 5.0)


def test_codes_are_stable_words() -> None:
    assert MeshError.code == "mesh"
    assert MalformedPacket("x", Fault.DUPLICATE).code == "malformed_packet"
    assert PartialDelivery(1, 0, "x").code == "partial_delivery"


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version": "\xff"}', b'{"more": ' + b"[" * 10_000])
def test_what_msgspec_raises_is_known(content: bytes) -> None:
    with pytest.raises(errors.UNDECODABLE):
        msgspec.json.decode(content, type=Versioned)


@pytest.mark.parametrize("text", ["=", "a = " + "[" * 10_000, "a = " + "7" * 10_000])
def test_what_tomllib_raises_is_known(text: str) -> None:
    with pytest.raises(errors.NOT_TOML):
        tomllib.loads(text)


def test_what_msgspec_raises_is_named_without_loading_it() -> None:
    assert msgspec.ValidationError.__mro__[2] in errors.UNDECODABLE
    with pytest.raises(AttributeError, match=r"module 'meshbus\.errors' has no attribute 'UNHEARD'"):
        _ = errors.UNHEARD  # type: ignore[attr-defined]
