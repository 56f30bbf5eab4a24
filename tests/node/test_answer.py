"""What became of a request: an answer, or the error that it is."""

from types import SimpleNamespace

import pytest

from meshbus.engine.base.notices import PeerRecovered, Replied, RequestFailed, RequestFault
from meshbus.errors import ChannelError, Timeout
from meshbus.names.channel import ChannelName
from meshbus.node.answer import Answers, answer_of
from meshbus.node.live import Live

CHANNEL = ChannelName("planner/plan")


def test_every_end_of_a_request_has_its_meaning() -> None:
    assert answer_of(Replied(1, 2, b"yes", last=True), CHANNEL, 1.0) == b"yes"
    with pytest.raises(Timeout, match="planner/plan"):
        answer_of(RequestFailed(1, 2, CHANNEL, RequestFault.TIMEOUT), CHANNEL, 1.0)
    with pytest.raises(ChannelError, match="no_responder"):
        answer_of(RequestFailed(1, 2, CHANNEL, RequestFault.NO_RESPONDER), CHANNEL, 1.0)
    with pytest.raises(ChannelError, match="failed: it broke"):
        answer_of(RequestFailed(1, 2, CHANNEL, RequestFault.FAILED, "it broke"), CHANNEL, 1.0)
    with pytest.raises(AssertionError):
        answer_of(PeerRecovered(1), CHANNEL, 1.0)


def test_nothing_to_cancel_is_fine() -> None:
    live: Live = SimpleNamespace()  # type: ignore[assignment]
    Answers(live).cancel()
