"""`meshbus new`: write the configuration of a node, with comments, by asking or from options."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from meshbus.cli.output import Json, note, show_facts
from meshbus.errors import ConfigError

TEMPLATE = """\
# Configuration of a meshbus node. Start it with:  meshbus up {path}
# Every setting is described in docs/settings.md; `meshbus config show {path}` lists them with their values.

# What people call this node; others show it beside its id.
{name}

# Where it listens (UDP). Port 0 means any free port: choose a fixed one if others are to connect to it.
bind = {bind}

# Its identity, created at the first start: keep the file private, and use it for one node only.
identity = {identity}

# The key of the mesh, the same on all its nodes. Whoever has it can join.
psk_file = {psk_file}

# Its place in the hierarchy of subnets, such as 3.7; "global" is outside of all.
{subnet}

# Where it keeps the logs of its channels.
{log_dir}

# A live page at http://127.0.0.1:9464/, and /metrics, /healthz and /readyz; needs pip install 'meshbus[web]'.
{web}

# Peers to keep a session with. The key is what `meshbus key show` prints on that machine.
{peers}

# Policies and logs of channels, by name or prefix.
{channels}
"""
_PEER = """\
[[peers]]
address = {address}
public_key = {key}
"""
_LOGGED = """\
[[channels]]
prefix = {prefix}
log = "both"             # published and received events; also: "published", "received"
# log_retain_bytes = 1073741824
"""
_NO_PEER = '# [[peers]]\n# address = "10.0.0.7:9000"\n# public_key = "…"\n'
_NO_CHANNEL = '# [[channels]]\n# prefix = "sensors/"\n# log = "both"\n# require_token = true\n'


@dataclass(frozen=True)
class Wish:
    """What a new node is to be."""

    name: str | None
    bind: str
    psk_file: str
    subnet: str | None
    peers: tuple[str, ...]
    logs: tuple[str, ...]
    metrics: bool


def new(
    path: Annotated[Path, Parameter(help="File to create.")] = Path("node.toml"),
    /,
    *,
    name: Annotated[str | None, Parameter(help="What people call the node, such as west-rover.")] = None,
    bind: Annotated[str | None, Parameter(help="Address to listen on, host:port.")] = None,
    psk_file: Annotated[str | None, Parameter(help="File with the mesh key; created if it does not exist.")] = None,
    subnet: Annotated[str | None, Parameter(help="Subnet of the node, such as 3.7.")] = None,
    peer: Annotated[
        list[str] | None, Parameter(help="Peer to keep a session with: HOST:PORT=PUBLIC_KEY. May be repeated.")
    ] = None,
    log: Annotated[
        list[str] | None, Parameter(help="Log the channels with this prefix, such as sensors/. May be repeated.")
    ] = None,
    metrics: Annotated[bool, Parameter(help="Serve metrics on 127.0.0.1:9464.", show_default=False)] = False,
    yes: Annotated[bool, Parameter(help="Ask nothing, also on a terminal.", show_default=False)] = False,
    json: Json = False,
) -> None:
    """Write the configuration of a new node, with comments; on a terminal without options, ask for it.

    A mesh key is created beside it unless it exists. Copy it to the other nodes of the mesh.
    """
    wish = Wish(
        name, bind or "127.0.0.1:0", psk_file or "mesh.key", subnet, tuple(peer or ()), tuple(log or ()), metrics
    )
    if path.exists():
        raise ConfigError("path", "exists; edit it, delete it first, or choose another name", source=str(path))
    given = (name, bind, psk_file, subnet, peer, log) != (None,) * 6 or metrics
    if not (yes or given) and sys.stdin.isatty():
        wish = _asked(wish)
    facts = _write(path, wish)
    show_facts(facts, json=json)
    note(f"start the node with `meshbus up {path}`; check it first with `meshbus check {path}`")


def _asked(wish: Wish) -> Wish:
    """Ask for the most important settings; an empty answer keeps what is shown."""

    def ask(question: str, usual: str) -> str:
        print(f"{question} [{usual}]: ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip() or usual

    name = ask("Name of the node, such as west-rover", "none")
    bind = ask("Address to listen on", wish.bind)
    psk_file = ask("File with the mesh key, created if it does not exist", wish.psk_file)
    peer = ask("A peer to connect to, HOST:PORT=PUBLIC_KEY", "none")
    log = ask("Prefix of channels to log, such as sensors/", "none")
    metrics = ask("Serve metrics for Prometheus on 127.0.0.1:9464, yes or no", "no")
    return replace(
        wish,
        name=None if name == "none" else name,
        bind=bind,
        psk_file=psk_file,
        peers=() if peer == "none" else (peer,),
        logs=() if log == "none" else (log,),
        metrics=metrics.lower() in {"y", "yes"},
    )


def _write(path: Path, wish: Wish) -> dict[str, object]:
    """Write the file, after it was checked, and the mesh key if there is none."""
    from meshbus.cli.options import load_config
    from meshbus.keyfile import create_psk, load_psk

    aside = path.with_name(f".{path.name}.new")
    try:
        aside.write_text(_text(path, wish), "utf-8")
    except OSError as error:
        problem = f"cannot be written: {error.strerror}; choose another directory"
        raise ConfigError("path", problem, source=str(path)) from None
    try:
        settings = load_config(aside)
    except ConfigError as error:
        raise ConfigError(error.key, error.problem) from None  # its source is a file that is gone already
    finally:
        text = aside.read_text("utf-8")
        aside.unlink()
    key = settings.psk_file
    assert key is not None, "the template names it"
    created = not key.exists()
    if created:
        create_psk(key)
    else:
        load_psk(key)  # raises for a file that is no mesh key
    path.write_text(text, "utf-8")
    return {"config": str(path), "psk_file": str(key), "psk_created": created}


def _text(path: Path, wish: Wish) -> str:
    stem = path.stem
    return TEMPLATE.format(
        path=path,
        name='# name = "west-rover"' if wish.name is None else f"name = {json.dumps(wish.name)}",
        bind=json.dumps(wish.bind),
        identity=json.dumps(f"{stem}.identity.toml"),
        psk_file=json.dumps(wish.psk_file),
        subnet='# subnet = "3.7"' if wish.subnet is None else f"subnet = {json.dumps(wish.subnet)}",
        log_dir=f"log_dir = {json.dumps(f'{stem}.logs')}" if wish.logs else f"# log_dir = {json.dumps(f'{stem}.logs')}",
        web='web = { bind = "127.0.0.1:9464" }' if wish.metrics else '# web = { bind = "127.0.0.1:9464" }',
        peers="\n".join(map(_peer, wish.peers)) or _NO_PEER,
        channels="\n".join(_LOGGED.format(prefix=json.dumps(prefix)) for prefix in wish.logs) or _NO_CHANNEL,
    )


def _peer(text: str) -> str:
    address, equals, key = text.partition("=")
    if not (address and equals and key):
        raise ConfigError(
            "--peer", f"expected HOST:PORT=PUBLIC_KEY, got {text!r}; `meshbus key show` prints the key there"
        )
    return _PEER.format(address=json.dumps(address), key=json.dumps(key))
