from meshbus.edge.zmtp.closereason import LASTING, CloseReason, Violation


def test_a_violation_shows_its_reason_and_detail() -> None:
    assert str(Violation(CloseReason.TOO_LONG, "9 bytes")) == "too_long: 9 bytes"
    assert str(Violation(CloseReason.EOF)) == "eof"


def test_what_time_may_heal_is_not_lasting() -> None:
    for reason in (CloseReason.EOF, CloseReason.SILENT, CloseReason.UNREACHABLE, CloseReason.HANDSHAKE_TIMEOUT):
        assert reason not in LASTING
    assert CloseReason.REFUSED in LASTING
