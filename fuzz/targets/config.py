"""Files that people write, or that a command of meshbus wrote and somebody changed: only a ConfigError may refuse them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fuzz.pieces import cut
from fuzz.scratch import new_folder
from fuzz.target import Run, Target
from meshbus import keyfile
from meshbus.config.loader import build, parse_file, read_texts
from meshbus.config.node import NodeConfig
from meshbus.config.policy import PolicyConfig
from meshbus.config.policydiff import differences
from meshbus.config.policyfile import read_signed
from meshbus.config.spelling import READERS
from meshbus.errors import ConfigError
from meshbus.node.audit import read_audit
from meshbus.node.peers.pinfile import load_pins
from meshbus.wire.invitation import parse_invite


def _used(config: NodeConfig) -> None:
    """Ask for everything that a node asks its settings for, except files."""
    repr(config)
    config.changed()
    config.capabilities()
    _applied(config.own_policy(7))


def _applied(policy: PolicyConfig) -> None:
    policy.channel_registry()
    policy.subnet_policy()
    policy.gateway_of(7, "robot")
    differences(PolicyConfig(), policy)
    differences(policy, PolicyConfig())


def _node(data: bytes) -> None:
    _used(build(NodeConfig, parse_file(data, "node.toml", Path("/nowhere")), READERS))


def _texts(data: bytes) -> None:
    """Read settings of the command line and the environment: a name and a text each."""
    texts = {}
    for piece in cut(data):
        name, _, text = piece.decode("utf-8", "replace").partition("=")
        texts[name] = text
    _used(build(NodeConfig, read_texts(texts), READERS))


def _policy(data: bytes) -> None:
    found = read_signed(data, "policy.toml")
    _applied(found.policy)
    if found.statement is not None:
        assert found.statement.verify()


def _tokens(data: bytes) -> None:
    chain = keyfile.parse_tokens(data.decode("utf-8", "replace"))
    assert keyfile.parse_tokens(keyfile.format_tokens(chain)) == chain


def _invite(data: bytes) -> None:
    found = parse_invite(data.decode("utf-8", "replace"))
    assert parse_invite(found.text()) == found


_LOADERS: tuple[Callable[[Path], object], ...] = (
    keyfile.load_identity,
    keyfile.load_psk,
    keyfile.load_passwords,
    keyfile.load_web_token,
    keyfile.load_tokens,
    load_pins,
    read_audit,
)


def _file() -> Run:
    """Read small files of a node; the first byte says which kind."""
    path = new_folder() / "file"
    path.touch(0o600)

    def run(data: bytes) -> None:
        if data:
            path.write_bytes(data[1:])
            _LOADERS[data[0] % len(_LOADERS)](path)

    return run


TARGETS: tuple[Target, ...] = (
    Target("config-node", lambda: _node, (ConfigError,), most_bytes=8192),
    Target("config-texts", lambda: _texts, (ConfigError,), most_bytes=8192),
    Target("config-policy", lambda: _policy, (ConfigError,), most_bytes=8192),
    Target("invite-text", lambda: _invite, (ConfigError,), most_bytes=512),
    Target("token-text", lambda: _tokens, (ConfigError,)),
    Target("small-files", _file, (ConfigError,)),
)
