"""Every error has an exit code and one line."""

import pytest

from meshbus.cli.exit import Exit, Refusal, code_of, sentence_of
from meshbus.errors import (
    AuthError,
    AuthFault,
    Backpressure,
    ChannelError,
    ChannelFault,
    ConfigError,
    DaemonError,
    DaemonFault,
    HandshakeError,
    HandshakeFault,
    LocalProtocolError,
    MigrationError,
    MigrationFault,
    PartialDelivery,
    PeerError,
    PeerFault,
    Timeout,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a", "b"), Exit.USAGE),
        (LocalProtocolError("a"), Exit.USAGE),
        (ChannelError(ChannelFault.EMPTY, "", "a"), Exit.USAGE),
        (ChannelError(ChannelFault.REJECTED, "a", "b"), Exit.DENIED),
        (ChannelError(ChannelFault.RATE_LIMITED, "a", "b"), Exit.FAILED),
        (Refusal("channel", "rejected", "a"), Exit.DENIED),
        (Refusal("channel", "invalid_char", "a"), Exit.USAGE),
        (Refusal("handshake", "timeout", "a"), Exit.UNREACHABLE),
        (Refusal("auth", "denied", "a"), Exit.DENIED),
        (DaemonError(DaemonFault.UNKNOWN, 1, "a"), Exit.USAGE),
        (DaemonError(DaemonFault.FAILED, 1, "a"), Exit.FAILED),
        (MigrationError(MigrationFault.TARGET_UNAVAILABLE, 1, "a"), Exit.UNREACHABLE),
        (Refusal("migration", "daemon-not-found", "a"), Exit.USAGE),
        (Refusal("migration", "timed-out", "a"), Exit.FAILED),
        (Refusal("daemon", "unknown", "a"), Exit.USAGE),
        (Refusal("system", None, "a"), Exit.FAILED),
        (AuthError(AuthFault.EXPIRED, "a"), Exit.DENIED),
        (HandshakeError(HandshakeFault.TIMEOUT, "a"), Exit.UNREACHABLE),
        (PeerError(PeerFault.UNKNOWN, 1), Exit.UNREACHABLE),
        (Timeout("a", 1), Exit.UNREACHABLE),
        (ConnectionRefusedError(), Exit.UNREACHABLE),
        (PartialDelivery(2, 1, "a"), Exit.PARTIAL),
        (Backpressure(0, 1), Exit.FAILED),
        (OSError("a"), Exit.FAILED),
    ],
)
def test_exit_codes_of_errors(error: Exception, code: Exit) -> None:
    assert code_of(error) is code


def test_the_codes_are_the_documented_numbers() -> None:
    assert [int(code) for code in Exit][:6] == [0, 1, 2, 3, 4, 5]


def test_an_error_is_one_line() -> None:
    assert sentence_of(ValueError("a\n  b\tc")) == "a b c"
    assert sentence_of(KeyError()) == "KeyError"
