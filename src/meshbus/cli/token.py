"""`meshbus token`: permissions as text. A token is no secret: only its subject can use it."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import App, Parameter

from meshbus.cli.exit import Exit
from meshbus.cli.output import Json, for_people, note, show_facts, show_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from meshbus.names.identity import Identity
    from meshbus.wire.messages.token import PermissionToken

app = App(name="token")

Entity: TypeAlias = Annotated[
    str, Parameter(help="Public key of who may use it: 64 hex digits, from `meshbus key show`.")
]
Allow: TypeAlias = Annotated[
    list[str], Parameter(help="What it allows: publish, subscribe, admin, delegate.", consume_multiple=True)
]
Signer: TypeAlias = Annotated[Path | None, Parameter(help="The identity file that signs; yours by default.")]
Out: TypeAlias = Annotated[Path | None, Parameter(help="Write to this new file.")]
Given: TypeAlias = Annotated[str, Parameter(help="A token file, or - for standard input.", allow_leading_hyphen=True)]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_TOKEN_TEXT = 1 << 16


@app.command
def issue(
    subject: Entity,
    channel: Annotated[str | None, Parameter(help="The channel; leave it out with --every-channel.")] = None,
    /,
    *,
    allow: Allow,
    ttl: Annotated[str, Parameter(help="How long it lasts: 90s, 15m, 12h, 30d.")] = "24h",
    every_channel: Annotated[bool, Parameter(help="For every channel in place of one.", show_default=False)] = False,
    depth: Annotated[int, Parameter(help="How many more times it may be handed on.")] = 0,
    generation: Annotated[int, Parameter(help="Raise it to revoke earlier ones.")] = 0,
    identity: Signer = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Sign a permission for somebody. It counts where your public key is a trusted issuer."""
    from os import urandom

    from meshbus.errors import ConfigError
    from meshbus.wire.messages.token import PermissionToken, Scope

    if (channel is None) != every_channel:
        raise ConfigError("channel", "give a channel, or --every-channel, and not both")
    scope = _scope(allow, also=Scope.WILDCARD if every_channel else Scope.NONE)
    if depth and not scope & Scope.DELEGATE:
        raise ConfigError("--depth", "only a token that allows delegate can be handed on: add `--allow delegate`")
    token = PermissionToken.issue(
        _signer(identity),
        _public_key(subject),
        scope,
        channel,
        ttl_s=_seconds(ttl),
        now=_now(),
        entropy=urandom,
        delegation_depth=depth,
        generation=generation,
    )
    _give((token,), out, json)


@app.command
def delegate(
    token: Given, subject: Entity, /, *, allow: Allow, identity: Signer = None, out: Out = None, json: Json = False
) -> None:
    """Hand a part of your permission on. What comes out is a chain: yours and the new one."""
    from os import urandom

    chain = _read(token)
    child = chain[-1].delegate(_signer(identity), _public_key(subject), _scope(allow), now=_now(), entropy=urandom)
    _give((*chain, child), out, json)


@app.command
def show(token: Given, /, *, json: Json = False) -> None:
    """Show what a token or a chain says, and whether its signatures are good."""
    chain = _read(token)
    if for_people(json):
        for one in chain:
            show_facts(_facts(one), json=False)
            print()
    else:
        show_rows([_facts(one) for one in chain], (), json=json, empty="")


@app.command
def verify(
    token: Given,
    /,
    *,
    issuer: Annotated[
        list[str] | None, Parameter(help="Trusted public keys; by default your configuration's and your own.")
    ] = None,
    subject: Annotated[str | None, Parameter(help="Also check that it is for this public key.")] = None,
    channel: Annotated[str | None, Parameter(help="Also check that it is for this channel.")] = None,
    allow: Annotated[list[str] | None, Parameter(help="Also check that it allows this.", consume_multiple=True)] = None,
    config: Annotated[Path | None, Parameter(help="The configuration with the trusted issuers.")] = None,
    json: Json = False,
) -> Exit:
    """Check a token or a chain as a node would; ends with 4 when it would be refused."""
    from meshbus.errors import AuthError
    from meshbus.policy.tokens import verify_chain

    chain = _read(token)
    roots = {_public_key(text) for text in issuer} if issuer else _trusted(config)
    wanted = _scope(allow) if allow else None
    try:
        verify_chain(chain, roots, _now())
        _check_use(chain[-1], None if subject is None else _public_key(subject), channel, wanted)
    except AuthError as error:
        show_facts({"valid": False, "reason": error.fault.value, "problem": str(error)}, json=json)
        note(f"refused: {error}")
        return Exit.DENIED
    show_facts({"valid": True, **_facts(chain[-1])}, json=json)
    return Exit.OK


@app.command
def revoke(
    issuer: Annotated[str, Parameter(help="Public key of the issuer: 64 hex digits.")],
    generation: Annotated[int, Parameter(help="The lowest generation that still counts.")],
    /,
    *,
    admin: Annotated[Path | None, Parameter(help="The admin socket of the node; by default the usual one.")] = None,
    config: Annotated[Path | None, Parameter(help="The configuration that names the socket.")] = None,
) -> None:
    """Make a running node stop believing an issuer's tokens of lower generations."""
    import asyncio

    from meshbus.cli.options import load_config
    from meshbus.cli.reach import RemoteDoor
    from meshbus.errors import ConfigError
    from meshbus.node.unix import LineClient

    key = _public_key(issuer)
    socket = admin or load_config(config).admin_path()
    if socket is None:
        raise ConfigError("--admin", "the configuration has no admin socket: name one")

    async def tell() -> None:
        async with await LineClient.connect(socket) as client:
            await RemoteDoor(client).ask("revoke", issuer=key.hex(), generation=generation)

    asyncio.run(tell())
    note("revoked until the node restarts: raise the generation of new tokens with --generation")


def _check_use(token: PermissionToken, subject: bytes | None, channel: str | None, wanted: int | None) -> None:
    from meshbus.errors import AuthError, AuthFault
    from meshbus.names.channel import ChannelName

    if subject is not None and token.subject != subject:
        raise AuthError(AuthFault.NOT_AUTHORIZED, f"the token is for {token.subject.hex()}, not for this subject")
    if wanted is not None and not token.allows(wanted):
        raise AuthError(AuthFault.NOT_AUTHORIZED, f"the token allows {', '.join(_words(token.scope))} only")
    if channel is not None and not token.is_wildcard and token.channel_hash != ChannelName(channel).hash:
        raise AuthError(AuthFault.NOT_AUTHORIZED, f"the token is for another channel than {channel!r}")


def _trusted(config: Path | None) -> set[bytes]:
    from meshbus.cli.options import load_config
    from meshbus.config.node import default_identity
    from meshbus.keyfile import load_identity

    settings = load_config(config)
    place = settings.identity or default_identity()
    own = {load_identity(place).entity_id} if place.exists() else set[bytes]()
    return own | set(settings.trusted_issuers)


def _facts(token: PermissionToken) -> dict[str, object]:
    now = _now()
    state = "valid" if token.valid(now) else "expired" if token.expired(now) else "not yet valid"
    return {
        "issuer": token.issuer.hex(),
        "subject": token.subject.hex(),
        "allows": _words(token.scope),
        "channel_hash": None if token.is_wildcard else f"{token.channel_hash:016x}",
        "every_channel": token.is_wildcard,
        "not_before": _date(token.not_before),
        "not_after": _date(token.not_after),
        "state": state,
        "delegation_depth": token.delegation_depth,
        "generation": token.issuer_generation,
        "good_signature": token.has_good_signature(),
    }


def _give(chain: Sequence[PermissionToken], out: Path | None, json: bool) -> None:
    """Hand over what was made: as a file with its facts, or as text to copy."""
    from meshbus.keyfile import create_file, format_tokens

    text = format_tokens(chain)
    if out is not None:
        create_file(out, text, "token")
        show_facts({"file": str(out), **_facts(chain[-1])}, json=json)
    elif json:
        show_facts({"token": "".join(text.split()), **_facts(chain[-1])}, json=True)
    else:
        sys.stdout.write(text)


def _read(given: str) -> tuple[PermissionToken, ...]:
    from meshbus.keyfile import load_tokens, parse_tokens

    return parse_tokens(sys.stdin.read(_MAX_TOKEN_TEXT), "standard input") if given == "-" else load_tokens(Path(given))


def _signer(identity: Path | None) -> Identity:
    from meshbus.config.node import default_identity
    from meshbus.keyfile import load_identity

    return load_identity(identity or default_identity())


def _public_key(text: str) -> bytes:
    from meshbus.errors import ConfigError

    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise ConfigError("public key", f"{text!r} is not a public key: it has 64 hex digits, see `meshbus key show`")
    return raw


def _scope(words: Iterable[str], *, also: int = 0) -> int:
    from meshbus.errors import ConfigError
    from meshbus.wire.messages.token import Scope

    known = {
        scope.name.lower(): int(scope)
        for scope in (Scope.PUBLISH, Scope.SUBSCRIBE, Scope.ADMIN, Scope.DELEGATE)
        if scope.name
    }
    scope = int(also)
    for word in (part.strip() for text in words for part in text.split(",")):
        if word not in known:
            raise ConfigError("--allow", f"{word!r} is none of {', '.join(known)}")
        scope |= known[word]
    return scope


def _words(scope: int) -> list[str]:
    from meshbus.wire.messages.token import Scope

    return [one.name.lower() for one in Scope if one.name and one is not Scope.WILDCARD and scope & one]


def _seconds(text: str) -> int:
    from meshbus.errors import ConfigError

    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    if found is None or not int(found[1]):
        raise ConfigError("--ttl", f"{text!r} is not a time: write a number and s, m, h or d, such as 90s, 12h or 30d")
    return int(found[1]) * _UNITS[found[2]]


def _date(unix_s: int) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))
    except (OverflowError, ValueError, OSError):
        return str(unix_s)


def _now() -> int:
    return time.time_ns() // 1_000_000_000
