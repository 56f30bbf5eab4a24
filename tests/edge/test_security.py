import pytest

from meshbus.edge.security import (
    CurveClient,
    CurveServer,
    Null,
    PlainClient,
    PlainServer,
    Security,
    anyone,
    curve_keypair,
    known_keys,
    passwords,
    read_key,
)
from meshbus.edge.zmtp.mechanism import Credentials, Verdict
from meshbus.edge.zmtp.metadata import SocketType
from meshbus.edge.zmtp.protocol import Limits, Session
from meshbus.edge.zmtp.z85 import decode_z85
from meshbus.errors import ConfigError
from tests.edge.zmtp.talk import pump

PUBLIC, SECRET = curve_keypair()


@pytest.mark.parametrize(
    ("shown", "verdict"),
    [
        (("admin", "secret"), Verdict.ALLOW),
        (("admin", "wrong"), Verdict.DENY),
        (("admin", ""), Verdict.DENY),
        (("nobody", ""), Verdict.DENY),
        (("nobody", "secret"), Verdict.DENY),
        (("admin", "\udcff"), Verdict.DENY),
    ],
)
def test_passwords(shown: tuple[str, str], verdict: Verdict) -> None:
    assert passwords({"admin": "secret"})(Credentials("PLAIN", *shown)) is verdict


def test_keys_in_both_spellings() -> None:
    raw = decode_z85(PUBLIC)
    for known in (PUBLIC, raw):
        judge = known_keys([known])
        assert judge(Credentials("CURVE", public_key=raw)) is Verdict.ALLOW
        assert judge(Credentials("CURVE", public_key=bytes(32))) is Verdict.DENY
    assert anyone(Credentials("NULL")) is Verdict.ALLOW


@pytest.mark.parametrize(
    "key",
    ["", "short", PUBLIC + "x", PUBLIC[:-1] + "~", b"\0" * 31],
    ids=["empty", "short", "long", "bad character", "short bytes"],
)
def test_an_invalid_key_is_refused_with_advice(key: str | bytes) -> None:
    with pytest.raises(ConfigError, match="32 bytes or 40 characters"):
        read_key("server_key", key)
    with pytest.raises(ConfigError, match="server_key"):
        CurveClient(key, SECRET)
    with pytest.raises(ConfigError, match="secret_key"):
        CurveServer(key, anyone)


def test_a_password_that_the_wire_cannot_carry() -> None:
    with pytest.raises(ConfigError, match="255 bytes"):
        PlainClient("admin", "ü" * 128)


def test_secrets_are_not_printed() -> None:
    values: list[Security] = [PlainClient("admin", "hush"), CurveClient(PUBLIC, SECRET), CurveServer(SECRET, anyone)]
    for value in values:
        assert "hush" not in repr(value)
        assert SECRET not in repr(value)
    assert CurveServer(SECRET, anyone).public_key == PUBLIC


@pytest.mark.parametrize(
    ("server", "client"),
    [
        (Null(), Null()),
        (Null(anyone), Null()),
        (PlainServer(anyone), PlainClient("a", "b")),
        (CurveServer(SECRET, anyone), CurveClient(PUBLIC, curve_keypair()[1])),
    ],
    ids=["null", "judged null", "plain", "curve"],
)
def test_they_shake_hands(server: Security, client: Security) -> None:
    publisher, subscriber = (
        Session(kind, security.handshake(kind), now=0.0, limits=Limits(max_message_bytes=1000))
        for kind, security in ((SocketType.PUB, server), (SocketType.SUB, client))
    )
    pump(publisher, subscriber)
    assert publisher.is_ready
    assert subscriber.is_ready
    assert server.encrypts == client.encrypts == publisher.is_sealed


def test_keys_of_pyzmq_are_bytes_of_z85() -> None:
    public, secret = curve_keypair()
    server = CurveServer(secret.encode(), known_keys([public.encode()]))
    assert server.public_key == public
    assert server.authenticate(Credentials("CURVE", public_key=read_key("k", public))) is Verdict.ALLOW
    assert repr(CurveClient(public.encode(), secret.encode())) == repr(CurveClient(public, secret))
    for broken in (b"\xff" * 40, b"~" * 40, b"0" * 39):
        with pytest.raises(ConfigError, match="40 characters of Z85"):
            read_key("secret_key", broken)
