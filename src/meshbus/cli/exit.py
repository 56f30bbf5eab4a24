"""Exit status of a command, and error messages on one line."""

from __future__ import annotations

from enum import IntEnum

from meshbus.errors import ChannelFault, DaemonFault, LogError, LogFault, MeshError, MigrationFault


class Exit(IntEnum):
    """Exit status of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    DENIED = 4
    PARTIAL = 5
    LOGGED = 6
    """Nobody got the events now, but they are in the log of the node: publishing them again would log them twice."""
    INTERRUPTED = 130
    """Shell convention for Ctrl-C: 128 + SIGINT."""


class Refusal(MeshError):
    """A running node answered a request with an error; `answered` and `fault` are that error's code and fault."""

    code = "mesh"

    def __init__(self, answered: str, fault: str | None, problem: str) -> None:
        self.answered = answered
        self.fault = fault
        super().__init__(problem)


_BY_CODE = {
    "config": Exit.USAGE,
    "local_protocol": Exit.USAGE,
    "handshake": Exit.UNREACHABLE,
    "peer": Exit.UNREACHABLE,
    "timeout": Exit.UNREACHABLE,
    "auth": Exit.DENIED,
    "join": Exit.DENIED,
    "partial_delivery": Exit.PARTIAL,
}
_BY_CHANNEL_FAULT = {
    ChannelFault.REJECTED: Exit.DENIED,
    ChannelFault.EMPTY: Exit.USAGE,
    ChannelFault.TOO_LONG: Exit.USAGE,
    ChannelFault.INVALID_FORMAT: Exit.USAGE,
    ChannelFault.INVALID_CHAR: Exit.USAGE,
}
_BY_DAEMON_FAULT: dict[str, Exit] = {
    DaemonFault.UNKNOWN: Exit.USAGE,
    MigrationFault.DAEMON_NOT_FOUND: Exit.USAGE,
    MigrationFault.TARGET_UNAVAILABLE: Exit.UNREACHABLE,
}
"""Of the errors of daemons and of their moves, whose words differ."""
_BY_LOG_FAULT = {LogFault.UNKNOWN: Exit.USAGE, LogFault.READ_ONLY: Exit.DENIED}


def code_of(error: BaseException) -> Exit:
    """Return the exit status for an error."""
    if isinstance(error, ConnectionError):
        return Exit.UNREACHABLE
    if not isinstance(error, MeshError):
        return Exit.FAILED
    if isinstance(error, LogError):
        return _BY_LOG_FAULT.get(error.fault, Exit.FAILED)
    code = error.answered if isinstance(error, Refusal) else error.code
    if code == "channel":
        return _BY_CHANNEL_FAULT.get(ChannelFault(getattr(error, "fault", "")), Exit.FAILED)
    if code in {"daemon", "migration"}:
        return _BY_DAEMON_FAULT.get(str(getattr(error, "fault", "")), Exit.FAILED)
    return _BY_CODE.get(code, Exit.FAILED)


def sentence_of(error: BaseException) -> str:
    """Return the message of an error on one line."""
    return " ".join(str(error).split()) or type(error).__name__
