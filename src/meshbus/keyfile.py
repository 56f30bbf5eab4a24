"""Files for secrets and permissions: node identities, mesh keys, edge credentials, tokens, certificates.

A secret file is written with mode 0600 under a temporary name and then linked to its final one: nobody else can read it
even for a moment, a half-written file is never seen, and no file is overwritten. A secret file that others can read is
refused, because its secret may be known by now. Keys and identities are small TOML files; a mesh key may also be 64 hex
digits alone, as other tools write it. Where the files are is configured in config/node.py.

A node has one secret, the seed of its Ed25519 identity; its Noise static key is derived from it (names/identity.py), so
the keys that peers were given stay valid as long as the file exists.
"""

from __future__ import annotations

import base64
import os
import stat
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from meshbus.errors import NOT_TOML, AuthError, ConfigError, MalformedPacket, RemoteProtocolError
from meshbus.formats import Format
from meshbus.names.identity import KEY_BYTES, Entropy, Identity
from meshbus.wire.certificate import VERSION as CERTIFICATE_VERSION
from meshbus.wire.certificate import Certificate, decode_certificate, encode_certificate
from meshbus.wire.messages.revocation import Revocation, decode_record, encode_record
from meshbus.wire.messages.token import MAX_CHAIN, TOKEN_BYTES, PermissionToken, decode_chain, encode_chain

VERSION = 1
"""The version of the file format."""
ON_DISK = (
    Format(
        name="key file",
        where="`identity`, `psk_file`, `pins`, `revocations`, `identity.invites.toml`",
        what="the identity of a node, the mesh key, the nodes that were seen secure, what was revoked, invites",
        version=VERSION,
        mark="`version`",
        refused="the start of a node with this file",
    ),
    Format(
        name="certificate",
        where="`certificate`",
        what="what an issuer certified about a node",
        version=CERTIFICATE_VERSION,
        mark="the first byte, in base64",
        refused="the start of a node with this file",
    ),
)
PSK_BYTES = 32
"""The size of a mesh key: the psk of the Noise handshake has 32 bytes."""

LAST_S = 253_402_300_799
"""The last second of the year 9999, which is the last that can be shown."""
_MAX_BYTES = 64 * 1024
"""A longer file is neither a key nor a token, and is not read to the end."""
MIN_WEB_TOKEN = 16
"""Characters of a token of the web server: 64 bits if they are random hex digits."""
_OTHERS = 0o077
"""The permission bits of group and others."""
_HAS_MODES = os.name == "posix"
"""Whether the mode of a file determines who can read it."""
_LINE = 76
"""Characters of a line of base64, as in MIME (RFC 2045)."""


def create_identity(path: Path, entropy: Entropy = os.urandom) -> Identity:
    """Create a new identity and its file.

    Raises ConfigError if the file exists, whatever is in it.
    """
    identity = Identity.generate(entropy)
    create_file(path, _format_identity(identity), "identity")
    return identity


def replace_identity(path: Path, identity: Identity, record: Revocation) -> None:
    """Write the file of an identity over that of the one before it, with the record by which it succeeds that one.

    Both are in one file, so that a crash leaves the old identity, or the new one with its record. Raises ConfigError.
    """
    succeeds = "# The record by which this key took the place of the one before it.\n"
    replace_file(
        path, f'{_format_identity(identity)}{succeeds}succeeds = "{encode_record(record).hex()}"\n', "identity"
    )


def load_succession(path: Path) -> Revocation | None:
    """Return the record by which the identity of a file succeeded another one, or None. Raises ConfigError."""
    identity, table = load_identity(path), read_table(path, "identity", _MAX_BYTES)
    if "succeeds" not in table:
        return None
    given = table["succeeds"]
    try:
        record = decode_record((from_hex(given) if isinstance(given, str) else None) or b"")
    except RemoteProtocolError:
        record = None
    if record is None or record.heir != identity.entity_id or not record.verify():
        raise _bad("identity", "has a damaged 'succeeds'; restore the file from a copy", path)
    return record


def _format_identity(identity: Identity) -> str:
    return (
        "# The secret of one meshbus node. Keep it private, and never use it for a second node.\n"
        f"# node id {identity.node_id:016x}, public key {identity.entity_id.hex()}\n"
        f'version = {VERSION}\nkind = "identity"\ncreated = "{_now()}"\nseed = "{identity.seed.hex()}"\n'
    )


def load_identity(path: Path) -> Identity:
    """Read an identity file. Raises ConfigError if it is missing, damaged or readable by others."""
    table = _parse_table(_read(path, "identity", secret=True), path, "identity")
    return Identity.from_seed(_secret(table, "seed", KEY_BYTES, path, "identity"))


def load_or_create(path: Path, entropy: Entropy = os.urandom) -> Identity:
    """Read an identity file, or create it if there is none."""
    if not path.exists():
        try:
            return create_identity(path, entropy)
        except ConfigError:
            if not path.exists():  # otherwise another process created it first
                raise
    return load_identity(path)


class MeshKey(msgspec.Struct, frozen=True):
    """What a file with a mesh key contains. Its repr shows no secrets."""

    key: bytes
    """The key of the mesh."""
    root: bytes
    """The first key of the mesh: names that follow from it, such as those of daemons, stay when the key changes."""
    previous: bytes | None = None
    """The key before this one."""
    until_s: int = 0
    """Until when nodes also accept the previous key, in unix seconds."""

    def __repr__(self) -> str:
        return f"MeshKey(until_s={self.until_s})"

    def __rich_repr__(self) -> list[tuple[str, int]]:
        return [("until_s", self.until_s)]


def create_psk(path: Path, entropy: Entropy = os.urandom) -> bytes:
    """Create a new mesh key and its file. Raises ConfigError if the file exists."""
    key = entropy(PSK_BYTES)
    create_file(path, format_mesh_key(MeshKey(key, key)), "psk")
    return key


def create_next_psk(path: Path, before: MeshKey, until_s: int, entropy: Entropy = os.urandom) -> MeshKey:
    """Create the mesh key that replaces another one, and its file. Raises ConfigError if the file exists."""
    following = MeshKey(entropy(PSK_BYTES), before.root, before.key, until_s)
    create_file(path, format_mesh_key(following), "psk")
    return following


def format_mesh_key(mesh_key: MeshKey) -> str:
    """Return the text of a file with a mesh key."""
    text = (
        "# The key of one mesh. Everyone who has it can join: keep it private.\n"
        f'version = {VERSION}\nkind = "psk"\ncreated = "{_now()}"\nkey = "{mesh_key.key.hex()}"\n'
    )
    if mesh_key.root != mesh_key.key:
        text += f'root = "{mesh_key.root.hex()}"\n'
    if mesh_key.previous is not None:
        text += (
            "# Nodes also accept the previous key until then (unix seconds).\n"
            f'previous = "{mesh_key.previous.hex()}"\nuntil = {mesh_key.until_s}\n'
        )
    return text


def load_psk(path: Path) -> bytes:
    """Read the mesh key of a file."""
    return load_mesh_key(path).key


def load_mesh_key(path: Path) -> MeshKey:
    """Read a mesh key: a file written by `create_psk` or `create_next_psk`, or 64 hex digits alone."""
    text = _read(path, "psk", secret=True)
    bare = from_hex(text.strip())
    if bare is not None and len(bare) == PSK_BYTES:
        return MeshKey(bare, bare)
    table = _parse_table(text, path, "psk")
    key = _secret(table, "key", PSK_BYTES, path, "psk")
    root = _secret(table, "root", PSK_BYTES, path, "psk") if "root" in table else key
    if "previous" not in table:
        return MeshKey(key, root)
    until_s = table.get("until")
    if type(until_s) is not int or not 0 <= until_s <= LAST_S:
        raise _bad(
            "psk", f"has no 'until' in unix seconds beside 'previous', got {until_s!r}; restore it from a copy", path
        )
    previous = _secret(table, "previous", PSK_BYTES, path, "psk")
    if previous == key:
        raise _bad("psk", "has the same 'key' and 'previous'; make it again with `meshbus key psk --after`", path)
    return MeshKey(key, root, previous, until_s)


def format_tokens(chain: Sequence[PermissionToken]) -> str:
    """Return a chain of tokens, the root's first, as lines of base64."""
    raw = encode_chain(chain)
    text = _base64_lines(raw)
    # Bytes that somebody chose can be base64 that reads as hex, which is tried first. Then hex is the one that is unambiguous.
    return text if from_hex(_packed(text)) is None else f"{raw.hex()}\n"


def parse_tokens(text: str, source: str = "") -> tuple[PermissionToken, ...]:
    """Read a token or a chain of tokens from hex or base64; white space and lines that start with `#` are ignored.

    Raises ConfigError for anything else. Signatures and validity are not checked.
    """
    packed = _packed(text)
    raw = from_hex(packed) if packed else None
    if raw is None:
        raw = _from_base64(packed)
    if not raw:
        raise _bad("token", "is neither hex nor base64; copy the token again, in full", source)
    try:
        return decode_chain(raw)
    except MalformedPacket:
        raise _bad(
            "token",
            f"has {len(raw)} bytes; a token has {TOKEN_BYTES}, and a chain has up to {MAX_CHAIN} tokens;"
            " copy it again, in full",
            source,
        ) from None


def load_tokens(path: Path) -> tuple[PermissionToken, ...]:
    """Read a token file. Tokens are not secret, as only their subject can use them, so others may read the file."""
    return parse_tokens(_read(path, "token"), str(path))


def save_certificate(path: Path, certificate: Certificate) -> None:
    """Write the file of a certificate over an older one. Raises ConfigError."""
    head = f"# Certificate of the meshbus node {certificate.name}, public key {certificate.subject.hex()}\n"
    replace_file(path, head + _base64_lines(encode_certificate(certificate)), "certificate")


def load_certificate(path: Path) -> Certificate:
    """Read the file of a certificate, and check its signature. It is not secret, so others may read the file."""
    raw = _from_base64(_packed(_read(path, "certificate"))) or b""
    if raw and (problem := ON_DISK[1].problem(raw[0])):
        raise _bad("certificate", problem, path)
    try:
        certificate = decode_certificate(raw)
        certificate.verify()
    except (MalformedPacket, AuthError) as error:
        raise _bad("certificate", f"is damaged: {error}; restore it from a copy, or join again", path) from None
    return certificate


def load_passwords(path: Path) -> dict[str, str]:
    """Read a private file of `name = "password"` lines."""
    text = _read(path, "passwords", secret=True)
    try:
        table = tomllib.loads(text)
    except NOT_TOML:
        table = {}
    if not table or not all(isinstance(word, str) for word in table.values()):
        # The parser's message is left out: it could contain a part of a secret.
        raise _bad("passwords", 'must be a list of name = "password", one per line', path)
    return table


def load_curve_secret(path: Path) -> str:
    """Read a private file that holds one CURVE key, in Z85."""
    return _read(path, "curve_secret", secret=True).strip()


def load_web_token(path: Path) -> str:
    """Read a private file that holds the token of the web server: one line of at least 16 characters."""
    token = _read(path, "token_file", secret=True).strip()
    if len(token) < MIN_WEB_TOKEN or not token.isprintable() or " " in token or not token.isascii():
        raise _bad(
            "token_file",
            f"must hold one line of at least {MIN_WEB_TOKEN} printable characters without spaces; create one with"
            " `openssl rand -hex 32`",
            path,
        )
    return token


def create_file(path: Path, text: str, what: str) -> None:
    """Create a file that only its owner can read, completely or not at all. Raises ConfigError if it exists."""
    place = path.parent / f".{path.name}.{os.urandom(6).hex()}"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _bad(what, f"its folder cannot be created: {error.strerror or error}", path) from None
    try:
        try:
            _write_new(place, text)
            _link(place, path, text)
        finally:
            place.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except FileExistsError:
        raise _bad(what, "exists, and is never overwritten; choose another name, or move the file away", path) from None
    except OSError as error:
        raise _bad(what, f"cannot be created: {error.strerror or error}", path) from None


def replace_file(path: Path, text: str, what: str) -> None:
    """Write a file that only its owner can read over an old one, completely or not at all. Raises ConfigError."""
    place = path.parent / f".{path.name}.{os.urandom(6).hex()}"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            _write_new(place, text)
            place.replace(path)
        finally:
            place.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        raise _bad(what, f"cannot be written: {error.strerror or error}", path) from None


def read_table(path: Path, what: str, most_bytes: int) -> dict[str, object]:
    """Read a TOML file of a kind that only its owner can change. Raises ConfigError."""
    return _parse_table(_read(path, what, secret=True, most_bytes=most_bytes), path, what)


def _write_new(path: Path, text: str) -> None:
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(handle)


def _link(place: Path, path: Path, text: str) -> None:
    """Rename a complete file to its final name. Raises FileExistsError if the name is taken."""
    try:
        os.link(place, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links, such as FAT: the file is private, but not created at once
        _write_new(path, text)


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that a new name survives a crash; only where folders can be opened."""
    if _HAS_MODES:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _read(path: Path, what: str, *, secret: bool = False, most_bytes: int = _MAX_BYTES) -> str:
    try:
        with path.open("rb") as file:
            # The open file is checked, not the path: the path could point to another file by now.
            status = os.fstat(file.fileno())
            if secret:
                _check_private(status, path, what)
            content = file.read(most_bytes + 1)
    except FileNotFoundError:
        make = {"identity": "meshbus key new", "psk": "meshbus key psk"}.get(what)
        hint = f"create it with `{make} {path}`, or correct the path" if make else "check the path"
        raise _bad(what, f"the file does not exist; {hint}", path) from None
    except OSError as error:
        raise _bad(what, f"cannot be read: {error.strerror or error}", path) from None
    if len(content) > most_bytes:
        raise _bad(what, f"is longer than {most_bytes} bytes, so it is another kind of file; check the path", path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise _bad(what, "is not text, so it is another kind of file; check the path", path) from None


def _check_private(status: os.stat_result, path: Path, what: str) -> None:
    if not _HAS_MODES:
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OTHERS:
        raise _bad(
            what, f"others can read or change it (mode {mode:04o}); run `chmod 600 {path}`, or create a new one", path
        )
    if status.st_uid not in {os.geteuid(), 0}:
        raise _bad(what, f"belongs to another user (uid {status.st_uid}); create your own, or change its owner", path)


def _parse_table(text: str, path: Path, what: str) -> dict[str, object]:
    try:
        table: dict[str, object] = tomllib.loads(text)
    except NOT_TOML:
        # The parser's message is left out: it could contain a part of a secret.
        raise _bad(what, "is damaged, or another kind of file; restore it from a copy", path) from None
    if table.get("kind") != what:
        raise _bad(what, f"is not a file of kind {what!r}; check the path", path)
    version = table.get("version")
    if not isinstance(version, int):
        raise _bad(what, "has no version, so it is damaged; restore it from a copy", path)
    if problem := ON_DISK[0].problem(version):
        raise _bad(what, problem, path)
    return table


def _secret(table: dict[str, object], key: str, size: int, path: Path, what: str) -> bytes:
    value = table.get(key)
    raw = from_hex(value) if isinstance(value, str) else None
    if raw is None or len(raw) != size:
        raise _bad(what, f"has no {key!r} of {2 * size} hex digits; restore it from a copy", path)
    return raw


def from_hex(text: str) -> bytes | None:
    """Return the bytes of hex digits, or None if the text is something else."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return None


def _from_base64(text: str) -> bytes | None:
    """Decode standard or URL-safe base64, with or without padding."""
    bare = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except ValueError:
        return None


def _packed(text: str) -> str:
    """Return a text without white space, and without lines that start with `#`."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return "".join("".join(lines).split())


def _base64_lines(raw: bytes) -> str:
    text = base64.b64encode(raw).decode()
    return "".join(text[start : start + _LINE] + "\n" for start in range(0, len(text), _LINE))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _bad(what: str, problem: str, source: Path | str) -> ConfigError:
    return ConfigError(what, problem, source=str(source))
