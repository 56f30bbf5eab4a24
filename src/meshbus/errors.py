"""Every error meshbus raises, in one tree.

    MeshError
    ├── ConfigError                  a bad file, key or value: names the key and what was expected
    ├── RegistryError                a duplicate or reserved subprotocol id
    ├── ProtocolError
    │   ├── LocalProtocolError       we were asked to send something illegal
    │   └── RemoteProtocolError      a peer sent something illegal: counted, never a crash
    │       ├── MalformedPacket      bytes that are not what they claim to be
    │       ├── UnknownVersion       a header of another protocol version
    │       ├── BadTag               authentication failed
    │       └── Replayed             a packet counter seen before, or too old
    ├── HandshakeError               wrong key, wrong psk or no answer: says which
    ├── AuthError                    a capability or token was not good enough
    ├── ChannelError                 a bad name, an unknown channel, a refusal
    ├── DeliveryError
    │   ├── Backpressure             the stream has no credit left
    │   ├── SlowConsumer             a subscription fell behind its bound
    │   └── PartialDelivery          some legs of a fan-out failed
    ├── PeerError                    unknown, failed or unreachable peer
    ├── LogError                     a corrupt segment, a range that is gone, a closed log, a full disk
    ├── PipelineError                Spark, its tables or its checkpoints cannot go on
    └── Timeout                      also a TimeoutError

Each class carries typed fields, writes its own message, and has a short stable `code` for the command line, metrics
and docs/errors.md. On the batch path a hostile packet is a verdict with a reason, not one of these.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class MeshError(Exception):
    """The root: catch this to catch everything meshbus raises on purpose."""

    code: ClassVar[str] = "mesh"


class ConfigError(MeshError):
    """Report a bad configuration value."""

    code = "config"

    def __init__(self, key: str, problem: str, *, source: str = "") -> None:
        self.key = key
        self.problem = problem
        self.source = source
        where = f" (from {source})" if source else ""
        super().__init__(f"{key}{where}: {problem}")


class RegistryFault(StrEnum):
    """Why a subprotocol id was refused."""

    DUPLICATE = "duplicate"
    RESERVED = "reserved"


class RegistryError(MeshError):
    """Report a subprotocol id that cannot be registered."""

    code = "registry"

    def __init__(self, fault: RegistryFault, subprotocol_id: int, problem: str) -> None:
        self.fault = fault
        self.subprotocol_id = subprotocol_id
        super().__init__(f"subprotocol 0x{subprotocol_id:04x}: {problem}")


class ProtocolError(MeshError):
    """The root of everything about bytes on the wire."""

    code = "protocol"


class LocalProtocolError(ProtocolError):
    """Report that we were asked to put something illegal on the wire."""

    code = "local_protocol"


class RemoteProtocolError(ProtocolError):
    """Report that a peer sent something illegal."""

    code = "remote_protocol"


class Fault(StrEnum):
    """What is wrong with a malformed message; also the label of its counter."""

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
    """Report bytes that are not what they claim to be."""

    code = "malformed_packet"

    def __init__(self, what: str, fault: Fault, detail: str = "") -> None:
        self.what = what
        self.fault = fault
        self.detail = detail
        super().__init__(f"{what}: {fault}" + (f" ({detail})" if detail else ""))


class UnknownVersion(RemoteProtocolError):
    """Report a packet header of a protocol version we do not speak."""

    code = "unknown_version"

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"packet header version {version} is not spoken here (expected 1)")


class BadTag(RemoteProtocolError):
    """Report a failed authentication: a forged or damaged packet, or the wrong key."""

    code = "bad_tag"

    def __init__(self, what: str = "packet") -> None:
        self.what = what
        super().__init__(f"{what}: authentication failed")


class Replayed(RemoteProtocolError):
    """Report a packet counter that was seen before, is too old, or jumps too far."""

    code = "replayed"

    def __init__(self, counter: int) -> None:
        self.counter = counter
        super().__init__(f"packet counter {counter} was replayed, is too old, or jumps too far ahead")


class HandshakeFault(StrEnum):
    """Why a handshake did not end in a session."""

    WRONG_KEY = "wrong_key"
    TIMEOUT = "timeout"
    REFUSED = "refused"


class HandshakeError(MeshError):
    """Report a handshake that did not end in a session."""

    code = "handshake"

    def __init__(self, fault: HandshakeFault, problem: str) -> None:
        self.fault = fault
        super().__init__(problem)


class AuthFault(StrEnum):
    """Why an authorization or a token was refused."""

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
    """Report an authorization that was refused."""

    code = "auth"

    def __init__(self, fault: AuthFault, problem: str) -> None:
        self.fault = fault
        super().__init__(problem)


class ChannelFault(StrEnum):
    """What is wrong with a channel name, or why a channel operation was refused."""

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
    """Report a bad channel name or a refused channel operation."""

    code = "channel"

    def __init__(self, fault: ChannelFault, channel: str, problem: str, *, reason: str = "") -> None:
        self.fault = fault
        self.channel = channel
        self.reason = reason
        """Why a publisher refused, as the wire names it: `unauthorized`, `unknown_channel`, `rate_limited`, ..."""
        super().__init__(f"channel {channel!r}: {problem}" if channel else problem)


class DeliveryError(MeshError):
    """The root of everything about events that did not arrive."""

    code = "delivery"


class Backpressure(DeliveryError):
    """Report a stream without enough credit for a send."""

    code = "backpressure"

    def __init__(self, credit: int, wanted: int) -> None:
        self.credit = credit
        self.wanted = wanted
        super().__init__(
            f"the stream has {credit} bytes of credit and {wanted} are wanted: slow down or wait for a grant"
        )


class SlowConsumer(DeliveryError):
    """Report a subscription that fell behind its bound."""

    code = "slow_consumer"

    def __init__(self, subscription: str, pending: int, dropped: int) -> None:
        self.subscription = subscription
        self.pending = pending
        self.dropped = dropped
        super().__init__(f"subscription {subscription!r} fell behind: {pending} events pending, {dropped} dropped")


class PartialDelivery(DeliveryError):
    """Report a fan-out in which every leg, or a leg that mattered, failed."""

    code = "partial_delivery"

    def __init__(self, attempted: int, delivered: int, problem: str, *, report: object = None) -> None:
        self.attempted = attempted
        self.delivered = delivered
        self.report = report
        """The PublishReport, leg by leg."""
        super().__init__(f"{delivered} of {attempted} subscribers reached: {problem}")


class PeerFault(StrEnum):
    """Why a peer cannot be used."""

    UNKNOWN = "unknown"
    FAILED = "failed"
    UNREACHABLE = "unreachable"


class PeerError(MeshError):
    """Report a peer that is unknown, failed or unreachable."""

    code = "peer"

    def __init__(self, fault: PeerFault, node_id: int, problem: str = "") -> None:
        self.fault = fault
        self.node_id = node_id
        super().__init__(f"peer {node_id:016x} is {fault}" + (f": {problem}" if problem else ""))


class LogFault(StrEnum):
    """Why a log cannot serve a request."""

    CORRUPT = "corrupt"
    RANGE_GONE = "range_gone"
    CLOSED = "closed"
    FAILED = "failed"
    """The disk refused something; what was acknowledged is still there."""
    FOREIGN = "foreign"
    """A folder or file that is not what its place says."""
    LOCKED = "locked"
    NEWER = "newer"
    """Written by a newer meshbus."""
    NO_SPACE = "no_space"
    READ_ONLY = "read_only"
    TOO_LARGE = "too_large"
    UNKNOWN = "unknown"
    """There is no log of that channel."""


class LogError(MeshError):
    """Report a log that cannot serve a request."""

    code = "log"

    def __init__(self, fault: LogFault, problem: str, *, first_available: int | None = None) -> None:
        self.fault = fault
        self.first_available = first_available
        super().__init__(problem)


class PipelineFault(StrEnum):
    """Why the Spark pipeline cannot go on."""

    NO_JAVA = "no_java"
    NO_SPARK = "no_spark"
    SETTINGS = "settings"
    BAD_TABLE = "bad_table"
    BAD_CHECKPOINT = "bad_checkpoint"
    RUNNING = "running"
    FAILED = "failed"


class PipelineError(MeshError):
    """Report that Spark, a table or a checkpoint of the pipeline cannot be used."""

    code = "pipeline"

    def __init__(self, fault: PipelineFault, problem: str) -> None:
        self.fault = fault
        super().__init__(problem)


class Timeout(MeshError, TimeoutError):
    """Report that nothing answered in time."""

    code = "timeout"

    def __init__(self, what: str, seconds: float) -> None:
        self.what = what
        self.seconds = seconds
        super().__init__(f"{what}: no answer within {seconds:g} s")
