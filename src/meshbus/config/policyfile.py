"""Reads the file of a policy; every error names the file and the line.

The file is TOML with the fields of `PolicyConfig`. What belongs to a single node, such as its address or its logs, is refused
with a sentence of its own: a policy holds only what may change while nodes run.

A file may be signed by an issuer (`meshbus policy sign`). The signature is a comment in its first line, so it is the same TOML
with or without it. Nodes pass the rest of the file and the signature on to each other (engine/directory/fleetpolicy.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import msgspec

from meshbus.config.findings import Findings
from meshbus.config.loader import Setting, build, parse_file, read_content
from meshbus.config.node import ChannelEntry, NodeConfig
from meshbus.config.policy import ChannelRule, GatewayEntry, PolicyConfig
from meshbus.config.spelling import READERS
from meshbus.config.tomllines import line_of, lines_of
from meshbus.errors import ConfigError
from meshbus.wire.messages.fleetpolicy import PolicyStatement

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")
"""What tomllib appends to its messages."""
_MARK = b"# meshbus-policy"
_SIGNED = re.compile(rb"# meshbus-policy version=([1-9]\d{0,19}) issuer=([0-9a-f]{64}) signature=([0-9a-f]{128})")
_OF_ONE_NODE = (
    "is a setting of one node, which cannot change while the node runs; set it in its node.toml, and restart it"
)


class PolicyFile(msgspec.Struct, frozen=True):
    """The policy of a file, and the bytes that it was read from."""

    content: bytes
    policy: PolicyConfig
    statement: PolicyStatement | None = None
    """What its issuer signed; None if the file is not signed."""

    @property
    def version(self) -> int:
        """The version of a signed policy; 0 for one that is not signed."""
        return 0 if self.statement is None else self.statement.version


def read_policy(path: Path) -> PolicyFile:
    """Read a policy file. Raises ConfigError with the file and the line of the first error."""
    try:
        content = read_content(path)
    except ConfigError as error:
        raise ConfigError("policy_file", error.problem, source=error.source) from None
    return read_signed(content, str(path))


def read_signed(content: bytes, source: str) -> PolicyFile:
    """Return the policy in the content of a file, and its signature if it has one; errors name `source` and the line."""
    return PolicyFile(content, parse_policy(content, source), statement_of(content, source))


def statement_of(content: bytes, source: str) -> PolicyStatement | None:
    """Return what the first line of a file says about the rest, if it is signed.

    Raises ConfigError if the signature is not one of this content. Whether its issuer is trusted is not checked.
    """
    if not content.startswith(_MARK):
        return None
    first, body = content.partition(b"\n")[0], body_of(content)
    found = _SIGNED.fullmatch(first)
    statement = None
    if found is not None and int(found[1]) < 1 << 64:
        issuer, signature = (bytes.fromhex(part.decode()) for part in (found[2], found[3]))
        statement = PolicyStatement(int(found[1]), len(body), sha256(body).digest(), issuer, signature)
    if statement is None or not statement.verify():
        raise ConfigError(
            "signature",
            "the first line is not a signature of the rest, which was changed after it was signed; sign it again with"
            " `meshbus policy sign`, or remove the line",
            source=f"{source}, line 1",
        )
    return statement


def signed_content(statement: PolicyStatement, body: bytes) -> bytes:
    """Return a policy with its signature, as it is stored: the signature is a comment in the first line."""
    line = f" version={statement.version} issuer={statement.issuer.hex()} signature={statement.signature.hex()}\n"
    return _MARK + line.encode() + body


def body_of(content: bytes) -> bytes:
    """Return the content of a policy file without the line of its signature."""
    return content.partition(b"\n")[2] if content.startswith(_MARK) else content


def parse_policy(content: bytes, source: str) -> PolicyConfig:
    """Return the policy in the content of a file.

    Raises ConfigError for the first error, with the others in it; each names `source` and the line.
    """
    try:
        return _checked(parse_file(content, source, Path()))
    except ConfigError as error:
        first, *more = (_located(one, content, source) for one in (error, *error.more))
        first.more = tuple(more)
        raise first from None


def _checked(settings: Mapping[str, Setting]) -> PolicyConfig:
    findings = Findings()
    for error in _settings_of_a_node(settings):
        findings.add(error)
    with findings.collect():
        policy = build(PolicyConfig, settings, READERS)
    # What is wrong by itself comes first: entries are compared only if each can be read.
    findings.raise_first()
    policy.check()
    return policy


def policy_of(config: NodeConfig, node_id: int) -> PolicyConfig:
    """Return the policy that a node begins with: that of its file, or that of its settings. Raises ConfigError."""
    return config.own_policy(node_id) if config.policy_file is None else read_policy(config.policy_file).policy


def _settings_of_a_node(settings: Mapping[str, Setting]) -> Iterator[ConfigError]:
    """Yield an error for each setting that no policy has."""
    for key in settings:
        if key in PolicyConfig.__struct_fields__:
            continue
        if key == "gateway" or key in GatewayEntry.__struct_fields__:
            yield ConfigError(key, "belongs to one gateway; write it in the [[gateways]] entry of that node")
        elif key in NodeConfig.__struct_fields__:
            yield ConfigError(key, _OF_ONE_NODE)
    channels = settings.get("channels")
    if channels is None or not isinstance(channels.value, list):
        return
    of_a_node = set(ChannelEntry.__struct_fields__) - set(ChannelRule.__struct_fields__)
    for number, entry in enumerate(channels.value):
        for key in entry if isinstance(entry, Mapping) else ():
            if key in of_a_node:
                yield ConfigError(f"channels[{number}].{key}", _OF_ONE_NODE)


def _located(error: ConfigError, content: bytes, source: str) -> ConfigError:
    """Return the error with the line that it is about, as far as that is known."""
    key = "policy" if error.key == "config" else error.key
    problem, line = error.problem, None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as broken:
        text, line = "", content.count(b"\n", 0, broken.start) + 1
    if place := _PLACE.search(problem):
        line = int(place[1]) if place[1] else text.count("\n") + 1
        problem = problem.replace(place[0], "")
    elif text and key != "policy":
        line = line_of(key, lines_of(text))
    return ConfigError(key, problem, source=source if line is None else f"{source}, line {line}")
