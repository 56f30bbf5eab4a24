"""Which mesh keys a node uses, accepts and recognizes."""

from meshbus.engine.session.meshkeys import MeshKeys
from meshbus.engine.settings import PreviousKey

NEW, OLD, OTHER = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32


def wall(now: float) -> int:
    return int(now * 1e9)


def test_one_key_alone() -> None:
    keys = MeshKeys(NEW, None, wall)
    assert keys.known == keys.accepted(0.0) == (NEW,)
    assert keys.accepts(NEW, 0.0)
    assert not keys.accepts(OLD, 0.0)
    assert keys.left_s(0.0) == 0.0


def test_two_keys_in_the_window_and_one_after_it() -> None:
    keys = MeshKeys(NEW, PreviousKey(OLD, wall(10.0)), wall)
    assert keys.accepted(9.0) == (NEW, OLD)
    assert keys.left_s(9.0) == 1.0
    assert keys.accepts(OLD, 9.999)
    assert not keys.accepts(OTHER, 9.0)
    for now in (10.0, 11.0):
        assert keys.accepted(now) == (NEW,)
        assert keys.known == (NEW, OLD)
        assert not keys.accepts(OLD, now)
        assert keys.left_s(now) == 0.0


def test_a_window_that_was_ended_stays_closed_and_its_key_is_recognized() -> None:
    keys = MeshKeys(NEW, PreviousKey(OLD, wall(10.0)), wall)
    keys.change(NEW, None)
    assert (keys.accepted(1.0), keys.known) == ((NEW,), (NEW, OLD))
    keys.change(OTHER, PreviousKey(NEW, wall(10.0)))
    assert keys.accepted(1.0) == (OTHER, NEW)
    keys.retire()
    assert (keys.accepted(1.0), keys.known) == ((OTHER,), (OTHER, NEW))
    alone = MeshKeys(NEW, None, wall)
    alone.retire()
    assert alone.known == (NEW,)


def test_secrets_are_not_shown() -> None:
    assert repr(PreviousKey(OLD, 5)) == "PreviousKey(until_ns=5)"
    assert PreviousKey(OLD, 5).__rich_repr__() == [("until_ns", 5)]
