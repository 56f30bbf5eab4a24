"""The exchange of a join: both sides authenticate each other, and nobody else reads what is granted."""

import os

import msgspec
import pytest

from meshbus.errors import BadTag, MalformedPacket
from meshbus.names.identity import Identity, noise_public_key
from meshbus.wire.invitation import InviteToken
from meshbus.wire.joining import (
    HELLO_BYTES,
    MAGIC,
    Admission,
    Granted,
    GrantedPeer,
    JoinAnswer,
    Newcomer,
    Refused,
    Waiting,
    read_hello,
)
from meshbus.wire.noise import Initiator
from tests.vectors import load

INVITER, ISSUER = Identity.from_seed(b"n" * 32), Identity.from_seed(b"i" * 32)
ROBOT, EVE = Identity.from_seed(b"r" * 32), Identity.from_seed(b"e" * 32)
TOKEN = InviteToken(b"id345678", b"s" * 16, INVITER.entity_id, ISSUER.entity_id)
PSK = bytes(range(32))
GRANT = Granted(certificate=b"c" * 200, psk=PSK, address=":9000", peers=(GrantedPeer("a:1", b"k" * 32),))


def admitted(hello: bytes, token: InviteToken = TOKEN, inviter: Identity = INVITER) -> Admission:
    invite_id, message = read_hello(hello)
    return Admission(inviter, invite_id, token.issuer, token.psk, message)


def newcomer(token: InviteToken = TOKEN, identity: Identity = ROBOT, ephemeral: bytes = b"1" * 32) -> Newcomer:
    return Newcomer(token, identity, ephemeral)


@pytest.mark.parametrize("answer", [GRANT, Waiting("ab"), Refused("join_used", "it was used")])
def test_an_answer_reaches_the_newcomer(answer: JoinAnswer) -> None:
    robot = newcomer()
    assert len(robot.hello) == HELLO_BYTES
    admission = admitted(robot.hello)
    assert admission.newcomer == ROBOT.entity_id
    assert robot.take(admission.answer(answer, b"2" * 32)) == answer
    assert admission.confirmed(robot.done())


def test_the_bytes_are_always_the_same() -> None:
    """Fixed keys, fixed bytes: what this build sends is what another one reads."""
    robot = newcomer()
    admission = admitted(robot.hello)
    sealed = admission.answer(Waiting("ab"), b"2" * 32)
    assert robot.take(sealed) == Waiting("ab")
    vector = load("join")["exchange"]
    assert {"hello": robot.hello.hex(), "answer": sealed.hex(), "done": robot.done().hex()} == {
        key: vector[key] for key in ("hello", "answer", "done")
    }
    assert (TOKEN.text(), TOKEN.psk.hex()) == (vector["token"], vector["psk"])


def test_nothing_that_is_sent_shows_the_mesh_key_or_the_token() -> None:
    robot = newcomer()
    admission = admitted(robot.hello)
    sent = robot.hello + admission.answer(GRANT, b"2" * 32)
    robot.take(sent[HELLO_BYTES:])
    sent += robot.done()
    for secret in (PSK, TOKEN.secret, TOKEN.psk, ROBOT.seed, ROBOT.entity_id):
        assert secret not in sent


def test_who_recorded_everything_and_learns_token_and_key_later_cannot_read_what_was_granted() -> None:
    """Forward secrecy: message 2 needs one of the two ephemeral keys, which both sides have forgotten."""
    robot = newcomer(ephemeral=os.urandom(32))
    recorded = robot.hello
    sealed = admitted(recorded).answer(GRANT, os.urandom(32))
    # With the static key of the inviting node and the token, message 1 opens: the entity of the newcomer is no secret.
    late = admitted(recorded)
    assert late.newcomer == ROBOT.entity_id
    # Message 2 does not, not even with a guess for the key of the newcomer.
    for guess in (b"1" * 32, os.urandom(32)):
        noise = Initiator(
            psk=TOKEN.psk,
            prologue=b"meshbus-join-v1\0" + TOKEN.invite_id + TOKEN.issuer,
            responder_public_key=noise_public_key(INVITER.entity_id),
            ephemeral_private_key=guess,
        )
        noise.write(b"")
        with pytest.raises(BadTag):
            noise.read(sealed)


def test_an_answer_of_somebody_else_is_refused() -> None:
    """In the middle, with and without the token: only the key that the token names can answer."""
    robot = newcomer()
    with pytest.raises(BadTag):
        admitted(robot.hello, inviter=EVE)  # he cannot even read message 1
    own = admitted(newcomer(msgspec.structs.replace(TOKEN, inviter=EVE.entity_id)).hello, inviter=EVE)
    with pytest.raises(BadTag):
        robot.take(own.answer(GRANT, b"2" * 32))
    # The handshake still waits, so that the genuine answer is taken.
    assert robot.take(admitted(robot.hello).answer(GRANT, b"3" * 32)) == GRANT


def test_an_answer_to_another_hello_is_refused() -> None:
    first, second = newcomer(ephemeral=b"1" * 32), newcomer(ephemeral=b"4" * 32)
    with pytest.raises(BadTag):
        second.take(admitted(first.hello).answer(GRANT, b"2" * 32))


@pytest.mark.parametrize("field", ["secret", "issuer", "invite_id"])
def test_a_hello_with_another_token_is_refused(field: str) -> None:
    wrong = msgspec.structs.replace(TOKEN, **{field: b"x" * len(getattr(TOKEN, field))})
    hello = newcomer(wrong).hello
    _, message = read_hello(hello)
    with pytest.raises(BadTag):
        Admission(INVITER, TOKEN.invite_id, TOKEN.issuer, TOKEN.psk, message)


def test_a_hello_for_a_key_that_the_newcomer_does_not_have_is_refused() -> None:
    class Thief(Identity):
        """Signs with its own key, and names another."""

    thief = Thief.from_seed(b"e" * 32)
    thief.entity_id = ROBOT.entity_id
    with pytest.raises(BadTag):
        admitted(newcomer(identity=thief).hello)


def test_every_changed_byte_of_a_hello_and_of_an_answer_is_noticed() -> None:
    robot = newcomer()
    for place in range(HELLO_BYTES):
        changed = bytearray(robot.hello)
        changed[place] ^= 1
        if len(MAGIC) <= place < len(MAGIC) + len(TOKEN.invite_id):
            assert read_hello(changed)[0] != TOKEN.invite_id
            continue
        with pytest.raises((BadTag, MalformedPacket)):
            admitted(bytes(changed))
    sealed = admitted(robot.hello).answer(Waiting("ab"), b"2" * 32)
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises((BadTag, MalformedPacket)):
            robot.take(bytes(changed))


def test_confirmations_of_others_and_of_other_exchanges_do_not_count() -> None:
    robot, again = newcomer(), newcomer(ephemeral=b"4" * 32)
    admission, later = admitted(robot.hello), admitted(again.hello)
    robot.take(admission.answer(GRANT, b"2" * 32))
    again.take(later.answer(GRANT, b"2" * 32))
    assert not later.confirmed(robot.done())
    assert not admission.confirmed(EVE.sign(b"done"))
    assert not admission.confirmed(b"")
    assert later.confirmed(again.done())


@pytest.mark.parametrize("hello", [b"", b"x" * HELLO_BYTES, MAGIC, MAGIC + b"x" * HELLO_BYTES])
def test_something_else_is_no_hello(hello: bytes) -> None:
    with pytest.raises(MalformedPacket):
        read_hello(hello)


def test_an_answer_that_cannot_be_read_is_malformed() -> None:
    robot = newcomer()
    admission = admitted(robot.hello)
    sealed = admission.answer({"type": "something new"}, b"2" * 32)  # type: ignore[arg-type]
    with pytest.raises(MalformedPacket):
        robot.take(sealed)


def test_no_repr_shows_the_mesh_key() -> None:
    assert PSK.hex() not in repr(GRANT)
    assert GRANT.__rich_repr__() == [("address", ":9000")]
