"""`meshbus token`: permission tokens as text. A token is not secret: only its subject can use it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import App, Parameter

from meshbus.cli.durations import seconds_of
from meshbus.cli.exit import Exit
from meshbus.cli.output import Json, for_people, note, show_facts, show_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from meshbus.names.identity import Identity
    from meshbus.wire.messages.token import PermissionToken

app = App(name="token")

Entity: TypeAlias = Annotated[
    str, Parameter(help="Public key of the node that may use the token: 64 hex digits from `meshbus key show`.")
]
Allow: TypeAlias = Annotated[
    list[str],
    Parameter(help="Permissions: any of publish, subscribe, admin, delegate.", consume_multiple=True),
]
Signer: TypeAlias = Annotated[Path | None, Parameter(help="Identity file that signs; default: your own.")]
Out: TypeAlias = Annotated[Path | None, Parameter(help="Write the token to this file, which must not exist.")]
Given: TypeAlias = Annotated[str, Parameter(help="Token file, or - for standard input.", allow_leading_hyphen=True)]

_MAX_TOKEN_TEXT = 1 << 16


@app.command
def issue(
    subject: Entity,
    channel: Annotated[
        str | None,
        Parameter(
            help="Channel name, or a prefix such as sensors/ for every channel below; omit it with --every-channel."
        ),
    ] = None,
    /,
    *,
    allow: Allow,
    ttl: Annotated[str, Parameter(help="Validity: a number and s, m, h or d, such as 90s, 12h or 30d.")] = "24h",
    every_channel: Annotated[bool, Parameter(help="Allow every channel.", show_default=False)] = False,
    renewable: Annotated[
        bool, Parameter(help="Let the issuer's node renew it before it expires.", show_default=False)
    ] = False,
    depth: Annotated[int, Parameter(help="How many times the token may be delegated.")] = 0,
    generation: Annotated[int, Parameter(help="Generation of the token; `revoke` rejects lower ones.")] = 0,
    identity: Signer = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Issue a token. Nodes accept it if your public key is one of their trusted issuers."""
    from os import urandom

    from meshbus.errors import ConfigError
    from meshbus.wire.messages.token import PermissionToken, Scope

    # A forgotten channel must not silently become a token for every channel.
    if (channel is None) != every_channel:
        raise ConfigError("channel", "give either a channel or --every-channel")
    also = (Scope.WILDCARD if every_channel else Scope.NONE) | (Scope.RENEWABLE if renewable else Scope.NONE)
    scope = _scope(allow, also=also)
    if depth and not scope & Scope.DELEGATE:
        raise ConfigError("--depth", f"{depth} requires the delegate permission; add `--allow delegate`")
    token = PermissionToken.issue(
        signer(identity),
        _public_key(subject),
        scope,
        channel,
        ttl_s=seconds_of(ttl, "--ttl"),
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
    """Delegate some of your permissions. The result is a chain: your token and the new one."""
    from os import urandom

    chain = read_given(token)
    child = chain[-1].delegate(signer(identity), _public_key(subject), _scope(allow), now=_now(), entropy=urandom)
    _give((*chain, child), out, json)


@app.command
def show(token: Given, /, *, json: Json = False) -> None:
    """Show the contents of a token or a chain, and whether each signature is valid."""
    chain = read_given(token)
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
        list[str] | None, Parameter(help="Trusted public keys; default: those of your configuration and your own.")
    ] = None,
    subject: Annotated[str | None, Parameter(help="Also check that its subject is this public key.")] = None,
    channel: Annotated[str | None, Parameter(help="Also check that it is valid for this channel.")] = None,
    allow: Annotated[
        list[str] | None, Parameter(help="Also check that it has these permissions.", consume_multiple=True)
    ] = None,
    config: Annotated[Path | None, Parameter(help="Configuration file with the trusted issuers.")] = None,
    json: Json = False,
) -> Exit:
    """Verify a token or a chain as a node would; exits with status 4 if it would be refused."""
    from meshbus.errors import AuthError
    from meshbus.policy.tokens import verify_chain

    chain = read_given(token)
    roots = {_public_key(text) for text in issuer} if issuer else _trusted(config)
    wanted = _scope(allow) if allow else None
    try:
        verify_chain(chain, roots, _now())
        _check_use(chain[-1], None if subject is None else _public_key(subject), channel, wanted)
    except AuthError as error:
        # The result goes to standard output for programs, the explanation to standard error for people.
        show_facts({"valid": False, "reason": error.fault.value, "problem": str(error)}, json=json)
        note(f"refused: {error}")
        return Exit.DENIED
    show_facts({"valid": True, **_facts(chain[-1])}, json=json)
    return Exit.OK


@app.command
def revoke(
    issuer: Annotated[str, Parameter(help="Public key of the issuer: 64 hex digits.")],
    generation: Annotated[int, Parameter(help="Lowest generation that stays valid.")],
    /,
    *,
    admin: Annotated[Path | None, Parameter(help="Admin socket of the node; default: the configured one.")] = None,
    config: Annotated[Path | None, Parameter(help="Configuration file that names the socket.")] = None,
) -> None:
    """Make a running node reject an issuer's tokens of lower generations, until it restarts."""
    import asyncio

    from meshbus.cli.reach import ask_node

    key = _public_key(issuer)
    asyncio.run(ask_node(admin, config, "revoke", issuer=key.hex(), generation=generation))
    note("revoked until the node restarts; issue new tokens with a higher --generation")


def _check_use(token: PermissionToken, subject: bytes | None, channel: str | None, wanted: int | None) -> None:
    from meshbus.errors import AuthError, AuthFault
    from meshbus.names.channel import ChannelName

    if subject is not None and token.subject != subject:
        raise AuthError(
            AuthFault.NOT_AUTHORIZED, f"the token is for subject {token.subject.hex()}, not {subject.hex()}"
        )
    if wanted is not None and not token.allows(wanted):
        raise AuthError(AuthFault.NOT_AUTHORIZED, f"the token allows only {', '.join(_words(token.scope))}")
    if channel is not None and not token.covers(ChannelName(channel)):
        raise AuthError(AuthFault.NOT_AUTHORIZED, f"the token is not for channel {channel!r}")


def _trusted(config: Path | None) -> set[bytes]:
    from meshbus.cli.options import load_config
    from meshbus.config.node import default_identity
    from meshbus.config.policyfile import policy_of
    from meshbus.keyfile import load_identity

    settings = load_config(config)
    place = settings.identity or default_identity()
    own = {load_identity(place).entity_id} if place.exists() else set[bytes]()
    return own | set(policy_of(settings, 0).trusted_issuers)


def _facts(token: PermissionToken) -> dict[str, object]:
    now = _now()
    state = "valid" if token.valid(now) else "expired" if token.expired(now) else "not yet valid"
    return {
        "issuer": token.issuer.hex(),
        "subject": token.subject.hex(),
        "allows": _words(token.scope),
        "channel_hash": None if token.is_wildcard else f"{token.channel_hash:016x}",
        "every_channel": token.is_wildcard,
        "prefix": token.is_prefix,
        "renewable": token.is_renewable,
        "not_before": _date(token.not_before),
        "not_after": _date(token.not_after),
        "state": state,
        "delegation_depth": token.delegation_depth,
        "generation": token.issuer_generation,
        "good_signature": token.has_good_signature(),
    }


def _give(chain: Sequence[PermissionToken], out: Path | None, json: bool) -> None:
    """Write the chain to a file and print its facts, or print it as text."""
    from meshbus.keyfile import create_file, format_tokens

    text = format_tokens(chain)
    if out is not None:
        create_file(out, text, "token")
        show_facts({"file": str(out), **_facts(chain[-1])}, json=json)
    elif json:
        show_facts({"token": "".join(text.split()), **_facts(chain[-1])}, json=True)
    else:
        sys.stdout.write(text)


def read_given(given: str) -> tuple[PermissionToken, ...]:
    """Return the chain in a token file, or on standard input."""
    from meshbus.keyfile import load_tokens, parse_tokens

    return parse_tokens(sys.stdin.read(_MAX_TOKEN_TEXT), "standard input") if given == "-" else load_tokens(Path(given))


def signer(identity: Path | None) -> Identity:
    """Return the identity that signs: that of a file, or the user's own."""
    from meshbus.config.node import default_identity
    from meshbus.keyfile import load_identity

    return load_identity(identity or default_identity())


def _public_key(text: str) -> bytes:
    from meshbus.errors import ConfigError

    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    # fromhex also accepts spaces, so the length of the bytes is what counts.
    if len(raw) != 32:
        raise ConfigError("public key", f"expected 64 hex digits, as `meshbus key show` prints them, got {text!r}")
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
            raise ConfigError("--allow", f"unknown permission {word!r}; choose from {', '.join(known)}")
        scope |= known[word]
    return scope


def _words(scope: int) -> list[str]:
    from meshbus.wire.messages.token import Scope

    return [one.name.lower() for one in Scope if one.name and one in Scope.ALL and scope & one]


def _date(unix_s: int) -> str:
    # A hostile token may hold any 64-bit time, which gmtime does not accept.
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))
    except (OverflowError, ValueError, OSError):
        return str(unix_s)


def _now() -> int:
    return time.time_ns() // 1_000_000_000
