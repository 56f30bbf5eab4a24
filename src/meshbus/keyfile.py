"""Secrets and permissions as files: the identity of a node, the key of a mesh, what edges ask for, tokens.

A secret file is created with mode 0600 under a name of its own and only then linked to its place: nobody else can read
it even for a moment, nothing half-written is ever seen, and nothing is overwritten. A secret file that others could
read is refused, because its secret may be known by now. Both kinds are small TOML texts; a mesh key may also be 64 hex
digits alone, as other tools write it. Where the files are is said in config/node.py.

A node has one secret, the seed of its Ed25519 identity; its Noise static key follows from it (names/identity.py), so
what peers are given stays the same as long as the file does.
"""

from __future__ import annotations

import base64
import os
import stat
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from meshbus.errors import ConfigError, MalformedPacket
from meshbus.names.identity import KEY_BYTES, Entropy, Identity
from meshbus.wire.messages.token import MAX_CHAIN, TOKEN_BYTES, PermissionToken, decode_chain, encode_chain

VERSION = 1
PSK_BYTES = 32

_MAX_BYTES = 64 * 1024
"""Longer files are neither keys nor tokens, and are not read to the end."""
_OTHERS = 0o077
"""Every permission of the group and of the world."""
_HAS_MODES = os.name == "posix"
"""Whether a file's mode says who can read it."""
_LINE = 76


def create_identity(path: Path, entropy: Entropy = os.urandom) -> Identity:
    """Make a new identity and its file.

    Raises ConfigError when there is a file already, whatever is in it.
    """
    identity = Identity.generate(entropy)
    create_file(
        path,
        "# The secret of one meshbus node. Keep it private, and never use it for a second node.\n"
        f"# node id {identity.node_id:016x}, public key {identity.entity_id.hex()}\n"
        f'version = {VERSION}\nkind = "identity"\ncreated = "{_now()}"\nseed = "{identity.seed.hex()}"\n',
        "identity",
    )
    return identity


def load_identity(path: Path) -> Identity:
    """Read an identity file; raises ConfigError when it is missing, damaged or readable by others."""
    table = _parse_table(_read(path, "identity", secret=True), path, "identity")
    return Identity.from_seed(_secret(table, "seed", KEY_BYTES, path, "identity"))


def load_or_create(path: Path, entropy: Entropy = os.urandom) -> Identity:
    """Read an identity file, or make it when there is none."""
    if not path.exists():
        try:
            return create_identity(path, entropy)
        except ConfigError:
            if not path.exists():  # otherwise another process was faster, and its file is as good
                raise
    return load_identity(path)


def create_psk(path: Path, entropy: Entropy = os.urandom) -> bytes:
    """Make a new mesh key and its file; raises ConfigError when there is a file already."""
    key = entropy(PSK_BYTES)
    create_file(
        path,
        "# The key of one mesh. Whoever holds it is inside: keep it private.\n"
        f'version = {VERSION}\nkind = "psk"\ncreated = "{_now()}"\nkey = "{key.hex()}"\n',
        "psk",
    )
    return key


def load_psk(path: Path) -> bytes:
    """Read a mesh key: a file of `create_psk`, or 64 hex digits alone."""
    text = _read(path, "psk", secret=True)
    bare = _from_hex(text.strip())
    if bare is not None and len(bare) == PSK_BYTES:
        return bare
    return _secret(_parse_table(text, path, "psk"), "key", PSK_BYTES, path, "psk")


def format_tokens(chain: Sequence[PermissionToken]) -> str:
    """Write a chain, the root's token first, as lines of base64."""
    text = base64.b64encode(encode_chain(chain)).decode()
    return "".join(text[start : start + _LINE] + "\n" for start in range(0, len(text), _LINE))


def parse_tokens(text: str, source: str = "") -> tuple[PermissionToken, ...]:
    """Read a token or a chain from hex or base64; white space and lines that start with `#` do not count.

    Raises ConfigError for anything else. What the tokens prove is not checked.
    """
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    packed = "".join("".join(lines).split())
    raw = _from_hex(packed) if packed else None
    if raw is None:
        raw = _from_base64(packed)
    if not raw:
        raise _bad("token", "is neither hex nor base64: copy the token again, in full", source)
    try:
        return decode_chain(raw)
    except MalformedPacket:
        raise _bad(
            "token",
            f"holds {len(raw)} bytes, and a token has {TOKEN_BYTES}, a chain up to {MAX_CHAIN} of them:"
            " copy it again, in full",
            source,
        ) from None


def load_tokens(path: Path) -> tuple[PermissionToken, ...]:
    """Read a token file. Tokens are no secrets: only their subject can use them, so anyone may read the file."""
    return parse_tokens(_read(path, "token"), str(path))


def load_passwords(path: Path) -> dict[str, str]:
    """Read a private file of `name = "password"` lines."""
    text = _read(path, "passwords", secret=True)
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        table = {}
    if not table or not all(isinstance(word, str) for word in table.values()):
        # What is wrong with it is not repeated: it would show a part of a secret.
        raise _bad("passwords", 'is not a list of name = "password", a line each: correct it', path)
    return table


def load_curve_secret(path: Path) -> str:
    """Read a private file that holds one CURVE key, in Z85."""
    return _read(path, "curve_secret", secret=True).strip()


def create_file(path: Path, text: str, what: str) -> None:
    """Create a file that only we can read, whole or not at all; raises ConfigError when it exists."""
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
        raise _bad(
            what, "there is a file already, and it is never overwritten: choose another name, or move it away", path
        ) from None
    except OSError as error:
        raise _bad(what, f"cannot be created: {error.strerror or error}", path) from None


def _write_new(path: Path, text: str) -> None:
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(handle)


def _link(place: Path, path: Path, text: str) -> None:
    """Give a finished file its name, which must be free."""
    try:
        os.link(place, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links, such as a memory card: private all the same
        _write_new(path, text)


def _sync_folder(folder: Path) -> None:
    """Make a new name survive a crash, where folders can be opened for that."""
    if _HAS_MODES:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _read(path: Path, what: str, *, secret: bool = False) -> str:
    try:
        with path.open("rb") as file:
            # Asked of the open file: what is checked is what is read.
            status = os.fstat(file.fileno())
            if secret:
                _check_private(status, path, what)
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        make = {"identity": "meshbus key new", "psk": "meshbus key psk"}.get(what)
        hint = f"make it with `{make} {path}`, or correct the path" if make else "check the path"
        raise _bad(what, f"there is no such file: {hint}", path) from None
    except OSError as error:
        raise _bad(what, f"cannot be read: {error.strerror or error}", path) from None
    if len(content) > _MAX_BYTES:
        raise _bad(what, f"is longer than {_MAX_BYTES} bytes: this is another file", path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise _bad(what, "is not text: this is another file", path) from None


def _check_private(status: os.stat_result, path: Path, what: str) -> None:
    if not _HAS_MODES:
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OTHERS:
        raise _bad(
            what, f"others can read or change it (mode {mode:04o}): run `chmod 600 {path}`, or make a new one", path
        )
    if status.st_uid not in {os.geteuid(), 0}:
        raise _bad(what, f"belongs to another user (uid {status.st_uid}): make your own, or change its owner", path)


def _parse_table(text: str, path: Path, what: str) -> dict[str, object]:
    try:
        table: dict[str, object] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        # What is wrong with it is not repeated: it would show a part of a secret.
        raise _bad(what, "is damaged, or another file: restore it from a copy", path) from None
    if table.get("kind") != what:
        raise _bad(what, f"is not of the kind {what!r}: check the path", path)
    if table.get("version") != VERSION:
        raise _bad(what, f"is not of version {VERSION}: a newer meshbus made it, use that one", path)
    return table


def _secret(table: dict[str, object], key: str, size: int, path: Path, what: str) -> bytes:
    value = table.get(key)
    raw = _from_hex(value) if isinstance(value, str) else None
    if raw is None or len(raw) != size:
        raise _bad(what, f"has no {key!r} of {2 * size} hex digits: restore it from a copy", path)
    return raw


def _from_hex(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return None


def _from_base64(text: str) -> bytes | None:
    """Read either alphabet of base64; the padding may be lost."""
    bare = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except ValueError:
        return None


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _bad(what: str, problem: str, source: Path | str) -> ConfigError:
    return ConfigError(what, problem, source=str(source))
