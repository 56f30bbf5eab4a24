"""The derived constants have the values of the protocol."""

from meshbus.wire import constants


def test_sizes_follow_from_the_header() -> None:
    assert constants.MAX_PAYLOAD == 8108
    assert constants.MAX_EVENT == 8104
    assert constants.MAX_EVENTS == 2027
    assert constants.PACKET_COST == 84
    assert constants.AAD_BYTES == constants.HEADER_BYTES - constants.NONCE_BYTES


def test_subprotocol_ids_are_distinct() -> None:
    ids = [value for name, value in vars(constants.Subprotocol).items() if name.isupper()]
    assert len(ids) == len(set(ids))
    assert all(0 <= value <= 0xFFFF for value in ids)
