"""The exceptions that meshbus raises.

    MeshError
    ├── ConfigError                  a bad file, key or value: names the key and the expected value
    ├── RegistryError                a duplicate or reserved subprotocol id
    ├── ProtocolError
    │   ├── LocalProtocolError       this program tried to send something the protocol forbids
    │   └── RemoteProtocolError      a peer sent something the protocol forbids: counted, never a crash
    │       ├── MalformedPacket      bytes that do not decode
    │       ├── UnknownVersion       a header of another protocol version
    │       ├── BadTag               authentication failed
    │       └── Replayed             a packet counter that repeats, is too old, or jumps too far ahead
    ├── HandshakeError               wrong key, timeout or refusal: `fault` says which
    ├── AuthError                    a missing permission or an invalid token
    ├── JoinError                    an inviting node did not admit this one: `reason` says why
    ├── ChannelError                 an invalid name, an unknown channel, a refused operation
    ├── DeliveryError
    │   ├── Backpressure             the stream has too little credit for a send
    │   ├── SlowConsumer             a subscription's queue is full
    │   ├── PartialDelivery          some subscribers did not get the event
    │   └── ReplicationError         a replicated channel refused events, or cannot say what became of them
    ├── PeerError                    an unknown, failed or unreachable peer
    ├── LogError                     a corrupt segment, a deleted range, a closed log, a full disk
    ├── PipelineError                Spark, a table or a checkpoint cannot be used
    ├── DaemonError                  a daemon is unknown, failed or cannot be restored
    ├── MigrationError               a daemon could not be moved
    └── Timeout                      no answer in time; also a TimeoutError

Each class has typed fields, builds its own message, and has a short stable `code`, which the command line, the metrics
and docs/errors.md use. The batch path raises none of them: there a bad packet gets a verdict with a drop reason.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import msgspec

    UNDECODABLE: tuple[type[msgspec.MsgspecError], type[UnicodeDecodeError], type[RecursionError]]
    """What msgspec raises for bytes that are not what they should be, also for texts that are not UTF-8, and for thousands of
    nested brackets."""
NOT_TOML = (ValueError, RecursionError)
"""What tomllib raises for a text that it cannot read. TOMLDecodeError is a ValueError; a number with thousands of digits is
refused by another one."""


if not TYPE_CHECKING:  # a type checker would believe in every name

    def __getattr__(name: str) -> object:
        """Return UNDECODABLE: msgspec is loaded by those who decode, and not by `meshbus --help`."""
        if name != "UNDECODABLE":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import msgspec

        return msgspec.MsgspecError, UnicodeDecodeError, RecursionError


# Classes that take a `problem` get the whole explanation from the code that raises them, because only that code knows
# what to advise. The others build the sentence from their fields.
class MeshError(Exception):
    """Base class of every exception that meshbus raises on purpose."""

    code: ClassVar[str] = "mesh"


class ConfigError(MeshError):
    """A configuration key or value is wrong."""

    code = "config"

    def __init__(self, key: str, problem: str, *, source: str = "") -> None:
        self.key = key
        self.problem = problem
        self.source = source
        self.more: tuple[ConfigError, ...] = ()
        """Other errors that were found in the same reading."""
        # The source is the file, the environment or an argument: the same key may be set in all three.
        where = f" (from {source})" if source else ""
        super().__init__(f"{key}{where}: {problem}")


class RegistryFault(StrEnum):
    """Why a subprotocol id cannot be registered."""

    DUPLICATE = "duplicate"
    RESERVED = "reserved"


class RegistryError(MeshError):
    """A subprotocol id cannot be registered."""

    code = "registry"

    def __init__(self, fault: RegistryFault, subprotocol_id: int, problem: str) -> None:
        self.fault = fault
        self.subprotocol_id = subprotocol_id
        super().__init__(f"subprotocol 0x{subprotocol_id:04x}: {problem}")


class ProtocolError(MeshError):
    """Base class of errors about bytes on the wire."""

    code = "protocol"


class LocalProtocolError(ProtocolError):
    """This program tried to send something that the protocol forbids."""

    code = "local_protocol"


class RemoteProtocolError(ProtocolError):
    """A peer sent something that the protocol forbids."""

    code = "remote_protocol"


class Fault(StrEnum):
    """What is wrong with a malformed message; also the label of the counter."""

    TRUNCATED = "truncated"
    TRAILING = "trailing"
    BAD_MAGIC = "bad_magic"
    BAD_LENGTH = "bad_length"
    BAD_VALUE = "bad_value"
    BAD_NAME = "bad_name"
    BAD_TEXT = "bad_text"
    DUPLICATE = "duplicate"
    UNKNOWN_KIND = "unknown_kind"


class MalformedPacket(RemoteProtocolError):
    """Bytes do not decode as the message or packet that they should be."""

    code = "malformed_packet"

    def __init__(self, what: str, fault: Fault, detail: str = "") -> None:
        self.what = what
        self.fault = fault
        self.detail = detail
        super().__init__(f"{what}: {fault}" + (f" ({detail})" if detail else ""))


class UnknownVersion(RemoteProtocolError):
    """A packet header has an unsupported protocol version."""

    code = "unknown_version"

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"unsupported packet header version {version}; only version 1 is supported")


class BadTag(RemoteProtocolError):
    """Authentication failed: a forged or damaged packet, or the wrong key."""

    code = "bad_tag"

    def __init__(self, what: str = "packet") -> None:
        self.what = what
        super().__init__(f"{what}: authentication failed; it is forged or damaged, or the keys differ")


class Replayed(RemoteProtocolError):
    """A packet counter repeats, is too old, or jumps too far ahead."""

    code = "replayed"

    def __init__(self, counter: int) -> None:
        self.counter = counter
        super().__init__(f"packet counter {counter} repeats, is too old, or jumps too far ahead")


class HandshakeFault(StrEnum):
    """Why a handshake failed."""

    WRONG_KEY = "wrong_key"
    TIMEOUT = "timeout"
    REFUSED = "refused"


class HandshakeError(MeshError):
    """A handshake failed, so there is no session."""

    code = "handshake"

    def __init__(self, fault: HandshakeFault, problem: str) -> None:
        self.fault = fault
        super().__init__(problem)


class AuthFault(StrEnum):
    """Why permission was denied, or why a token is invalid."""

    DENIED = "denied"
    BAD_SIGNATURE = "bad_signature"
    NOT_YET_VALID = "not_yet_valid"
    EXPIRED = "expired"
    ZERO_TTL = "zero_ttl"
    DELEGATION_EXHAUSTED = "delegation_exhausted"
    DELEGATION_NOT_ALLOWED = "delegation_not_allowed"
    NOT_AUTHORIZED = "not_authorized"
    READ_ONLY = "read_only"


class AuthError(MeshError):
    """Permission was denied, or a token is invalid."""

    code = "auth"

    def __init__(self, fault: AuthFault, problem: str) -> None:
        self.fault = fault
        super().__init__(problem)


class JoinError(MeshError):
    """This node was not admitted to a fleet."""

    code = "join"

    def __init__(self, reason: str, problem: str) -> None:
        self.reason = reason
        """The short word of the inviting node, as in docs/reasons.md: `join_used`, `join_expired`, …"""
        super().__init__(problem)


class ChannelFault(StrEnum):
    """Why a channel name is invalid, or why a channel operation was refused."""

    EMPTY = "empty"
    TOO_LONG = "too_long"
    INVALID_FORMAT = "invalid_format"
    INVALID_CHAR = "invalid_char"
    ALREADY_EXISTS = "already_exists"
    UNKNOWN = "unknown"
    NOT_SUBSCRIBED = "not_subscribed"
    REJECTED = "rejected"
    RATE_LIMITED = "rate_limited"


class ChannelError(MeshError):
    """A channel name is invalid, or a channel operation was refused."""

    code = "channel"

    def __init__(self, fault: ChannelFault, channel: str, problem: str, *, reason: str = "") -> None:
        self.fault = fault
        self.channel = channel
        self.reason = reason
        """The publisher's reason, in lower case as in AckReason: `unauthorized`, `unknown_channel`, `rate_limited`, …"""
        super().__init__(f"channel {channel!r}: {problem}" if channel else problem)


class DeliveryError(MeshError):
    """Base class of errors about events that were not delivered."""

    code = "delivery"


class Backpressure(DeliveryError):
    """A stream cannot send yet: it has too little credit, or waits for acknowledgements."""

    code = "backpressure"

    def __init__(self, credit: int, wanted: int, problem: str = "") -> None:
        """Describe what is missing; `problem` replaces the sentence where it is not credit."""
        self.credit = credit
        self.wanted = wanted
        if problem:
            super().__init__(problem)
            return
        # A reliable stream may have credit and still wait, because the peer has not acknowledged its last packets.
        if credit < wanted:
            problem = f"the stream has {credit} bytes of credit left, {wanted} are needed"
        else:
            problem = f"{wanted} bytes wait until the peer has acknowledged what was sent before"
        super().__init__(f"{problem}; send less often, or wait and try again")


class SlowConsumer(DeliveryError):
    """A subscription's queue is full."""

    code = "slow_consumer"

    def __init__(self, subscription: str, pending: int, dropped: int) -> None:
        self.subscription = subscription
        self.pending = pending
        self.dropped = dropped
        super().__init__(
            f"subscription {subscription!r} fell behind: {pending} events pending, {dropped} dropped; "
            "read faster, or raise max_events or max_bytes"
        )


class PartialDelivery(DeliveryError):
    """An event did not reach every subscriber that it had to reach."""

    code = "partial_delivery"

    def __init__(self, attempted: int, delivered: int, problem: str, *, report: object = None) -> None:
        self.attempted = attempted
        self.delivered = delivered
        self.problem = problem
        self.report = report
        """The PublishReport, with the outcome for each subscriber."""
        super().__init__(f"{delivered} of {attempted} subscribers reached: {problem}")


class ReplicationFault(StrEnum):
    """Why a replicated channel did not acknowledge events."""

    NO_LEADER = "no_leader"
    """No leader is known, or it cannot be reached. Nothing was stored."""
    NO_MAJORITY = "no_majority"
    """The leader does not hear from a majority of the members. Nothing was stored."""
    BACKPRESSURE = "backpressure"
    """Too many events wait for their acknowledgement. Nothing was stored."""
    DENIED = "denied"
    """The leader's policy does not allow this node to publish on the channel. Nothing was stored."""
    UNRESOLVED = "unresolved"
    """The leader was lost before it acknowledged: the events are kept or lost, and the channel's log will show which."""
    REFUSED = "refused"
    """A change of the members was refused."""


class ReplicationError(DeliveryError):
    """A replicated channel refused events or a change, or cannot say what became of them."""

    code = "replication"

    def __init__(self, fault: ReplicationFault, channel: str, problem: str) -> None:
        self.fault = fault
        self.channel = channel
        self.problem = problem
        super().__init__(f"{channel}: {problem}")


class PeerFault(StrEnum):
    """Why a peer cannot be used."""

    UNKNOWN = "unknown"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    INSECURE = "insecure"
    """Its session should be secure and is not (docs/guide/secure-sessions.md)."""


class PeerError(MeshError):
    """A peer is unknown, failed, unreachable, or not secure although it should be."""

    code = "peer"

    def __init__(self, fault: PeerFault, node_id: int, problem: str = "") -> None:
        self.fault = fault
        self.node_id = node_id
        state = "has failed" if fault is PeerFault.FAILED else f"is {fault}"
        super().__init__(f"peer {node_id:016x} {state}" + (f": {problem}" if problem else ""))


class LogFault(StrEnum):
    """Why a log cannot serve a request."""

    CORRUPT = "corrupt"
    RANGE_GONE = "range_gone"
    CLOSED = "closed"
    FAILED = "failed"
    """A disk operation failed; acknowledged events are still there."""
    FOREIGN = "foreign"
    """A directory or file is not what its name and location say."""
    LOCKED = "locked"
    NEWER = "newer"
    """A newer version of meshbus wrote it."""
    NO_SPACE = "no_space"
    READ_ONLY = "read_only"
    TOO_LARGE = "too_large"
    UNKNOWN = "unknown"
    """The channel has no log."""
    UNREACHABLE = "unreachable"
    """Object storage does not answer, or refuses; acknowledged events are still there."""


class LogError(MeshError):
    """A log cannot serve a request."""

    code = "log"

    def __init__(self, fault: LogFault, problem: str, *, first_available: int | None = None) -> None:
        self.fault = fault
        self.first_available = first_available
        super().__init__(problem)


class PipelineFault(StrEnum):
    """Why the Spark pipeline cannot run."""

    NO_JAVA = "no_java"
    NO_SPARK = "no_spark"
    SETTINGS = "settings"
    BAD_TABLE = "bad_table"
    BAD_CHECKPOINT = "bad_checkpoint"
    RUNNING = "running"
    FAILED = "failed"


class PipelineError(MeshError):
    """Spark, a table or a checkpoint of the pipeline cannot be used."""

    code = "pipeline"

    def __init__(self, fault: PipelineFault, problem: str) -> None:
        self.fault = fault
        super().__init__(problem)


class DaemonFault(StrEnum):
    """What is wrong with a daemon."""

    UNKNOWN = "unknown"
    DUPLICATE = "duplicate"
    STATELESS = "stateless"
    FAILED = "failed"
    """Its own code raised."""
    RESTORE = "restore"
    PAUSED = "paused"
    """It is being handed over and takes no events."""
    GAP = "gap"
    """An event is not the next one of its log."""


class DaemonError(MeshError):
    """A daemon is unknown, failed or cannot be restored."""

    code = "daemon"

    def __init__(self, fault: DaemonFault, origin: int, problem: str) -> None:
        self.fault = fault
        self.origin = origin
        super().__init__(f"daemon {origin:016x}: {problem}")


class MigrationFault(StrEnum):
    """Why a daemon could not be moved, in the words of the net-mesh binding where it has one."""

    NOT_READY = "not-ready"
    FACTORY_NOT_FOUND = "factory-not-found"
    COMPUTE_NOT_SUPPORTED = "compute-not-supported"
    STATE_FAILED = "state-failed"
    ALREADY_MIGRATING = "already-migrating"
    IDENTITY_TRANSPORT_FAILED = "identity-transport-failed"
    NOT_READY_TIMEOUT = "not-ready-timeout"
    DAEMON_NOT_FOUND = "daemon-not-found"
    TARGET_UNAVAILABLE = "target-unavailable"
    WRONG_PHASE = "wrong-phase"
    SNAPSHOT_TOO_LARGE = "snapshot-too-large"
    BUFFER_FULL = "buffer-full"
    WRONG_PEER = "wrong-peer"
    TIMED_OUT = "timed-out"
    CANCELED = "canceled"


class MigrationError(MeshError):
    """A daemon could not be moved; unless `fault` says otherwise it still runs where it ran."""

    code = "migration"

    def __init__(self, fault: MigrationFault, origin: int, problem: str) -> None:
        self.fault = fault
        self.origin = origin
        super().__init__(f"daemon {origin:016x}: {problem}")


class Timeout(MeshError, TimeoutError):
    """No answer came in time."""

    code = "timeout"

    def __init__(self, what: str, seconds: float) -> None:
        self.what = what
        self.seconds = seconds
        super().__init__(f"{what}: no answer within {seconds:g} s")
