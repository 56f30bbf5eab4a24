"""Secret files are private from their first moment, are never overwritten, and are refused once others could read them."""

import base64
import os
import re
import stat
import threading
import tomllib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus import keyfile
from meshbus.errors import ConfigError
from meshbus.keyfile import (
    MeshKey,
    create_file,
    create_identity,
    create_next_psk,
    create_psk,
    format_tokens,
    load_certificate,
    load_curve_secret,
    load_identity,
    load_mesh_key,
    load_or_create,
    load_passwords,
    load_psk,
    load_succession,
    load_tokens,
    load_web_token,
    parse_tokens,
    replace_identity,
    save_certificate,
)
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.wire.certificate import Certificate
from meshbus.wire.messages.revocation import Revocation, encode_record
from meshbus.wire.messages.token import TOKEN_BYTES, PermissionToken, Scope, decode_chain, encode_chain, encode_token

SEED = bytes(range(32))
HEX = SEED.hex()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "identity.toml"


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A user whose files everyone may write."""
    before = os.umask(0)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _private(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    return path


def _chain(length: int = 1) -> tuple[PermissionToken, ...]:
    people = [Identity.from_seed(bytes([index]) * 32) for index in range(length + 1)]
    token = PermissionToken.issue(
        people[0], people[1].entity_id, Scope.ALL, "a/b", ttl_s=60, now=1_000, entropy=bytes, delegation_depth=9
    )
    chain = [token]
    for signer, subject in pairwise(people[1:]):
        chain.append(chain[-1].delegate(signer, subject.entity_id, Scope.ALL, now=1_000, entropy=bytes))
    return tuple(chain)


# ── identities ──────────────────────────────────────────────────────────────────────────────


def test_an_identity_is_the_same_when_read_again(place: Path) -> None:
    made = create_identity(place)
    read = load_identity(place)
    assert read.seed == made.seed
    assert read.noise_private_key == made.noise_private_key


def test_an_identity_file_says_what_it_is(place: Path) -> None:
    identity = create_identity(place, lambda size: SEED[:size])
    table = tomllib.loads(place.read_text("utf-8"))
    assert (table["version"], table["kind"], table["seed"]) == (1, "identity", HEX)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", table["created"])
    assert f"{identity.node_id:016x}" in place.read_text("utf-8")


def test_load_or_create_makes_a_file_once(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "er" / "identity.toml"
    keys = load_or_create(place)
    assert load_or_create(place) == keys
    assert _mode(place) == 0o600
    assert _mode(place.parent) == 0o700


def test_many_at_once_agree_on_one_identity(place: Path) -> None:
    found: list[Identity] = []
    threads = [threading.Thread(target=lambda: found.append(load_or_create(place))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


# ── files ───────────────────────────────────────────────────────────────────────────────────


def test_a_secret_is_private_before_it_has_its_name(
    place: Path, open_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    link = os.link

    def watch(source: Path, target: Path) -> None:
        seen.append((_mode(source), source.read_text("utf-8"), target.exists()))
        link(source, target)

    monkeypatch.setattr(os, "link", watch)
    create_file(place, "secret", "identity")
    assert seen == [(0o600, "secret", False)]
    assert _mode(place) == 0o600
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_a_new_file_is_private_from_the_call_that_makes_it(
    place: Path, open_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    real = os.open

    def watch(path: Path, flags: int, mode: int = 0o777) -> int:
        handle = real(path, flags, mode)
        if flags & os.O_CREAT:
            made.append((bool(flags & os.O_EXCL), stat.S_IMODE(os.fstat(handle).st_mode)))
        return handle

    monkeypatch.setattr(os, "open", watch)
    create_psk(place)
    assert made == [(True, 0o600)]


def test_without_links_a_file_is_still_private_and_never_overwritten(
    place: Path, open_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    keys = create_identity(place)
    assert _mode(place) == 0o600
    assert load_identity(place) == keys
    with pytest.raises(ConfigError, match="never overwritten"):
        create_identity(place)
    assert len(list(place.parent.iterdir())) == 1


@pytest.mark.parametrize("make", [create_identity, create_psk])
def test_a_file_is_never_overwritten(place: Path, make: Callable[[Path], object]) -> None:
    place.write_text("something", "utf-8")
    with pytest.raises(ConfigError, match="exists, and is never overwritten"):
        make(place)
    assert place.read_text("utf-8") == "something"
    assert len(list(place.parent.iterdir())) == 1


def test_a_link_that_leads_nowhere_is_not_followed(place: Path, tmp_path: Path) -> None:
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="never overwritten"):
        create_identity(place)
    with pytest.raises(ConfigError, match="never overwritten"):
        load_or_create(place)
    assert not (tmp_path / "elsewhere").exists()


def test_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(ConfigError, match="its folder cannot be created"):
        create_psk(tmp_path / "file" / "psk")
    with pytest.raises(ConfigError, match="cannot be created"):
        create_psk(tmp_path / ("x" * 300))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o602, 0o610])
def test_a_secret_that_others_could_read_is_refused(place: Path, mode: int) -> None:
    create_identity(place)
    place.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        load_identity(place)
    assert str(caught.value) == (
        f"identity (from {place}): others can read or change it (mode {mode:04o});"
        f" run `chmod 600 {place}`, or create a new one"
    )
    place.chmod(0o400)
    load_identity(place)


def test_a_secret_of_another_user_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_psk(place)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda handle: os.stat_result([*real(handle)[:4], 54321, *real(handle)[5:]]))
    with pytest.raises(ConfigError, match=r"belongs to another user \(uid 54321\); create your own"):
        load_psk(place)


def test_modes_are_not_asked_where_they_mean_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = create_psk(place)
    place.chmod(0o644)
    monkeypatch.setattr(keyfile, "_HAS_MODES", False)
    assert load_psk(place) == key


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a file of kind 'identity'"),
        ("not toml at all", "is damaged, or another kind of file"),
        ("seed = " + "7" * 10_000, "is damaged, or another kind of file"),
        (f'version = 1\nkind = "psk"\nseed = "{HEX}"', "is not a file of kind 'identity'"),
        (
            f'version = 2\nkind = "identity"\nseed = "{HEX}"',
            "key file, version 2, was written by a newer meshbus; this one reads version 1",
        ),
        (f'kind = "identity"\nseed = "{HEX}"', "has no version, so it is damaged"),
        ('version = 1\nkind = "identity"', "has no 'seed' of 64 hex digits"),
        ('version = 1\nkind = "identity"\nseed = 5', "has no 'seed' of 64 hex digits"),
        (f'version = 1\nkind = "identity"\nseed = "{HEX[:-2]}"', "has no 'seed' of 64 hex digits"),
        (f'version = 1\nkind = "identity"\nseed = "{HEX[:-2]}zz"', "has no 'seed' of 64 hex digits"),
        (f'seed = "{HEX}', "is damaged, or another kind of file"),
        ("#" * 70_000, "is longer than 65536 bytes"),
    ],
)
def test_a_damaged_identity_is_refused_without_repeating_it(place: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_identity(_private(place, text))
    assert str(caught.value).startswith(f"identity (from {place}): {complaint}")
    assert HEX[:16] not in str(caught.value)


def test_bytes_that_are_no_text_are_refused(place: Path) -> None:
    place.write_bytes(b"\xff\xfe\x00")
    place.chmod(0o600)
    with pytest.raises(ConfigError, match="is not text"):
        load_identity(place)


def test_a_missing_file_says_how_to_make_it(place: Path) -> None:
    with pytest.raises(ConfigError, match="the file does not exist; create it with `meshbus key new "):
        load_identity(place)
    with pytest.raises(ConfigError, match="the file does not exist; create it with `meshbus key psk "):
        load_psk(place)
    with pytest.raises(ConfigError, match="the file does not exist; check the path"):
        load_tokens(place)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_tokens(place.parent)


# ── mesh keys ───────────────────────────────────────────────────────────────────────────────


def test_a_mesh_key_is_the_same_when_read_again(place: Path) -> None:
    key = create_psk(place)
    assert load_psk(place) == key
    assert len(key) == 32


@pytest.mark.parametrize("text", [HEX, HEX.upper() + "\n", f"  {HEX}\n\n"])
def test_a_mesh_key_may_be_bare_hex(place: Path, text: str) -> None:
    assert load_psk(_private(place, text)) == SEED


@pytest.mark.parametrize("text", ["", HEX[:-2], HEX + "00", "hello", f'version = 1\nkind = "identity"\nseed = "{HEX}"'])
def test_a_damaged_mesh_key_is_refused(place: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^psk \(from ") as caught:
        load_psk(_private(place, text))
    assert HEX[:16] not in str(caught.value)


def test_a_mesh_key_that_others_could_read_is_refused(place: Path) -> None:
    place.write_text(HEX, "utf-8")
    place.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_psk(place)


def test_the_next_mesh_key_knows_the_one_before_and_keeps_the_root(place: Path) -> None:
    first = create_psk(place)
    second = create_next_psk(place.with_name("second"), load_mesh_key(place), 1000)
    third = create_next_psk(place.with_name("third"), second, 2000)
    assert load_mesh_key(place) == MeshKey(first, first)
    assert load_mesh_key(place.with_name("second")) == second == MeshKey(second.key, first, first, 1000)
    assert load_mesh_key(place.with_name("third")) == third == MeshKey(third.key, first, second.key, 2000)
    assert len({first, second.key, third.key}) == 3
    assert load_psk(place.with_name("third")) == third.key
    assert third.key.hex() not in f"{third!r} {third.__rich_repr__()}"
    with pytest.raises(ConfigError, match="exists, and is never overwritten"):
        create_next_psk(place, second, 1)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (f'previous = "{HEX}"', "has no 'until' in unix seconds beside 'previous', got None"),
        (f'previous = "{HEX}"\nuntil = -1', "has no 'until' in unix seconds beside 'previous', got -1"),
        (f'previous = "{HEX}"\nuntil = 253402300800', "got 253402300800"),
        (f'previous = "{HEX}"\nuntil = true', "has no 'until' in unix seconds beside 'previous', got True"),
        ('previous = "ab"\nuntil = 5', "has no 'previous' of 64 hex digits"),
        ('root = "ab"', "has no 'root' of 64 hex digits"),
        (f'previous = "{"00" * 32}"\nuntil = 5', "has the same 'key' and 'previous'"),
    ],
)
def test_a_damaged_next_mesh_key_is_refused(place: Path, lines: str, complaint: str) -> None:
    text = f'version = 1\nkind = "psk"\nkey = "{"00" * 32}"\n{lines}\n'
    with pytest.raises(ConfigError) as caught:
        load_mesh_key(_private(place, text))
    assert complaint in str(caught.value)
    assert HEX[:16] not in str(caught.value)


# ── tokens ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("length", [1, 2, 8])
def test_a_chain_is_the_same_when_read_again(length: int) -> None:
    chain = _chain(length)
    text = format_tokens(chain)
    assert parse_tokens(text) == chain
    assert max(map(len, text.splitlines())) <= 76


def test_a_chain_whose_base64_reads_as_hex_is_the_same_when_read_again() -> None:
    chain = decode_chain(bytes(3 * TOKEN_BYTES))  # in base64 only the letter A, 676 times: as hex, two other tokens
    assert parse_tokens(format_tokens(chain)) == chain


@pytest.mark.parametrize(
    "text",
    [
        encode_token(*_chain()).hex(),
        encode_token(*_chain()).hex().upper(),
        base64.b64encode(encode_token(*_chain())).decode(),
        base64.b64encode(encode_token(*_chain())).decode().rstrip("="),
        base64.urlsafe_b64encode(encode_token(*_chain())).decode(),
        "# for the planner\n  # until Monday\n" + format_tokens(_chain()),
        "\n".join(encode_token(*_chain()).hex()),
    ],
    ids=["hex", "upper", "base64", "unpadded", "urlsafe", "comments", "spread"],
)
def test_tokens_are_read_as_people_send_them(text: str) -> None:
    assert parse_tokens(text) == _chain()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is neither hex nor base64"),
        ("# only a comment", "is neither hex nor base64"),
        ("not a token!", "is neither hex nor base64"),
        ("abcd", "has 2 bytes; a token has 169, and a chain has up to 8 tokens"),
        (encode_token(*_chain()).hex()[:-2], "has 168 bytes"),
        ((encode_chain(_chain(8)) + encode_token(*_chain())).hex(), "has 1521 bytes"),
    ],
)
def test_bad_tokens_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_tokens(text, "the clipboard")
    assert str(caught.value).startswith(f"token (from the clipboard): {complaint}")


@given(st.text(max_size=400))
def test_any_text_is_a_chain_or_a_complaint(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_tokens(text)


def test_a_token_file_may_be_read_by_anyone(tmp_path: Path) -> None:
    file = tmp_path / "a.token"
    file.write_text(format_tokens(_chain(2)), "utf-8")
    file.chmod(0o644)
    assert load_tokens(file) == _chain(2)


def test_passwords_and_curve_keys_are_private_files(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text('robot = "hush"\n')
    for load in (load_passwords, load_curve_secret):
        path.chmod(0o644)
        with pytest.raises(ConfigError, match="others can read"):
            load(path)
        path.chmod(0o600)
        assert load(path)
    assert load_passwords(path) == {"robot": "hush"}
    for bad in ("", "robot", "robot = 1", "[robot]", "robot = " + "7" * 10_000):
        path.write_text(bad)
        with pytest.raises(ConfigError, match="one per line") as raised:
            load_passwords(path)
        assert "hush" not in str(raised.value)
    path.write_text("  key \n")
    assert load_curve_secret(path) == "key"


def test_the_token_of_the_web_server_is_one_long_word_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "web.token"
    path.write_text(f"{'ab' * 16}\n", "utf-8")
    path.chmod(0o600)
    assert load_web_token(path) == "ab" * 16
    for wrong in ("", "short", "a b" * 10, "ü" * 20):
        path.write_text(wrong, "utf-8")
        with pytest.raises(ConfigError, match="must hold one line of at least 16 printable characters"):
            load_web_token(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError):
        load_web_token(path)


def test_a_certificate_is_checked_when_it_is_read(tmp_path: Path) -> None:
    issuer, path = Identity.from_seed(b"i" * 32), tmp_path / "node.certificate"
    certificate = Certificate(
        issuer=issuer.entity_id,
        subject=Identity.from_seed(b"r" * 32).entity_id,
        serial=1,
        not_before=1,
        not_after=2,
        subnet=SubnetId.GLOBAL,
        name="rover-7",
        tags=(),
    ).signed_by(issuer)
    for _ in range(2):  # a newer one replaces it
        save_certificate(path, certificate)
    path.chmod(0o644)  # it is not secret
    assert load_certificate(path) == certificate
    text = path.read_text("utf-8")
    assert text.startswith("# Certificate of the meshbus node rover-7")
    body = text.splitlines()[1]
    for damaged in (
        text.replace(body, body[:-4]),
        text.replace(body, body[:8] + "AAAA" + body[12:]),
        "",
        "not base64!",
    ):
        path.write_text(damaged, "utf-8")
        with pytest.raises(ConfigError, match="is damaged"):
            load_certificate(path)


def test_an_identity_that_succeeds_another_one_has_the_record_in_its_file(tmp_path: Path) -> None:
    place, new = tmp_path / "id.toml", Identity.from_seed(bytes(32))
    old = create_identity(place)
    assert load_succession(place) is None
    record = Revocation.succeed(old, new, at=1, reason="new key")
    replace_identity(place, new, record)
    assert (load_identity(place), load_succession(place)) == (new, record)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [place]  # nothing is left of the old secret, nor of the way to the new one
    text, raw = place.read_text("utf-8"), encode_record(record).hex()
    foreign = Revocation.succeed(old, Identity.from_seed(bytes(range(32))), at=1, reason="new key")
    for damaged in ("", "xyz", raw[:-2], raw[:-2] + f"{int(raw[-2:], 16) ^ 1:02x}", encode_record(foreign).hex()):
        place.write_text(text.replace(raw, damaged), "utf-8")
        with pytest.raises(ConfigError, match="damaged 'succeeds'"):
            load_succession(place)
    place.write_text(text.replace(f'"{raw}"', "7"), "utf-8")
    with pytest.raises(ConfigError, match="damaged 'succeeds'"):
        load_succession(place)
