"""A policy file is valid as a whole, or its error names the file, the line, the value and what is allowed."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from meshbus.config.loader import MAX_FILE_BYTES
from meshbus.config.node import NodeConfig
from meshbus.config.policyfile import body_of, parse_policy, policy_of, read_policy, read_signed, signed_content
from meshbus.errors import ConfigError
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.policy.channels import Visibility
from meshbus.wire.messages.fleetpolicy import PolicyStatement

KEY = "ab" * 32
GOOD = f"""\
unlisted_channels = "refuse"
trusted_issuers = ["{KEY}"]
default_subnet = "9"

[[channels]]
name = "robots/pose"
visibility = "exported"
subscribe_caps = {{ require_tags = ["lidar"] }}

[[channels]]
prefix = "plant/"
names = ["plant/state"]
visibility = "parent-visible"
require_token = true
max_rate_pps = 100

[[gateways]]
node = "gw-west"
peer_subnets = ["3.7", "4"]

[[exports]]
channel = "robots/pose"
subnets = ["4"]

[[subnet_rules]]
match_tags = ["site:west"]
target_subnet = "3.7"
"""


class Wrong(NamedTuple):
    """A wrong file: its text, the line of the mistake, and what the message must say."""

    text: str
    line: int | None
    tells: str


CHANNEL = '[[channels]]\nname = "a/b"\n'
GATEWAY = '[[gateways]]\nnode = "gw"\n'
EXPORTED = '[[channels]]\nname = "a/b"\nvisibility = "exported"\n'

WRONG = {
    "not TOML": Wrong("channels = [\n", 2, "is not valid TOML"),
    "a key twice": Wrong('default_subnet = "1"\ndefault_subnet = "2"\n', 2, "is not valid TOML"),
    "an open string": Wrong('default_subnet = "1\n', 1, "is not valid TOML"),
    "unknown key": Wrong('\nunlisted_chanels = "open"\n', 2, "did you mean 'unlisted_channels'?"),
    "unknown table": Wrong('[[chanels]]\nname = "a"\n', 1, "did you mean 'channels'?"),
    "a setting of a node": Wrong(
        "# fast\nheartbeat_s = 1\n", 2, "cannot change while the node runs; set it in its node.toml"
    ),
    "the subnet of a node": Wrong('subnet = "3"\n', 1, "is a setting of one node"),
    "the log of a channel": Wrong(CHANNEL + 'log = "published"\n', 3, "is a setting of one node"),
    "replicas of a channel": Wrong(CHANNEL + "replicas = 3\n", 3, "is a setting of one node"),
    "a gateway as a setting": Wrong("gateway = true\n", 1, "write it in the [[gateways]] entry of that node"),
    "subnets of a gateway as a setting": Wrong('peer_subnets = ["3"]\n', 1, "write it in the [[gateways]] entry"),
    "channels are no list": Wrong("channels = 3\n", 1, "expected a list, each item a table, got 3"),
    "a channel is no table": Wrong("channels = [3]\n", 1, "expected a table, got 3"),
    "a channel without a name": Wrong(
        '[[channels]]\nvisibility = "global"\n', 1, "set exactly one of 'name' and 'prefix'"
    ),
    "a name and a prefix": Wrong(CHANNEL + 'prefix = "a/"\n', 1, "set exactly one of 'name' and 'prefix'"),
    "an upper-case name": Wrong(
        '[[channels]]\nname = "Robots"\n', 2, "upper case is not allowed on the wire; try 'robots'"
    ),
    "an empty name": Wrong('[[channels]]\nname = ""\n', 2, "empty"),
    "a bad prefix": Wrong('[[channels]]\nprefix = "A/"\n', 2, "cannot begin a channel name; use a-z"),
    "a name outside its prefix": Wrong(
        '[[channels]]\nprefix = "a/"\nnames = ["b/c"]\n', 3, "does not begin with the prefix 'a/'"
    ),
    "names without a prefix": Wrong(CHANNEL + 'names = ["a/c"]\n', 3, "only allowed with 'prefix'"),
    "unknown visibility": Wrong(
        CHANNEL + 'visibility = "everywhere"\n', 3, "one of subnet-local, parent-visible, exported, global"
    ),
    "priority too high": Wrong(CHANNEL + "priority = 256\n", 3, "must be in [0, 255], got 256"),
    "a priority as text": Wrong(CHANNEL + 'priority = "high"\n', 3, "expected an integer, got 'high'"),
    "a rate of nothing": Wrong(CHANNEL + "max_rate_pps = 0\n", 3, "must be in [1, 4294967295], got 0"),
    "a truth value as text": Wrong(CHANNEL + 'require_token = "yes"\n', 3, "expected true or false, got 'yes'"),
    "events too small": Wrong(CHANNEL + "max_event_bytes = 4096\n", 3, "bytes, got 4096"),
    "unknown way of large events": Wrong(CHANNEL + 'large = "maybe"\n', 3, "one of reliable, refuse"),
    "unknown condition": Wrong(
        CHANNEL + 'subscribe_caps = { require_tag = ["x"] }\n', 3, "did you mean 'require_tags'?"
    ),
    "tags as text": Wrong(CHANNEL + '[channels.publish_caps]\nrequire_tags = "x"\n', 4, "expected a list"),
    "unknown vendor": Wrong(CHANNEL + '[channels.publish_caps]\ngpu_vendor = "acme"\n', 4, "nvidia, amd, intel"),
    "a channel twice": Wrong(CHANNEL + "\n" + CHANNEL, 4, "name 'a/b' is already in channels[0]; remove one"),
    "a prefix twice": Wrong(
        '[[channels]]\nprefix = "a/"\n\n[[channels]]\nprefix = "a/"\n', 4, "prefix 'a/' is already in channels[0]"
    ),
    "a short key": Wrong('trusted_issuers = ["abcd"]\n', 1, "expected 64 hex digits, got 'abcd'"),
    "an issuer twice": Wrong(
        f'trusted_issuers = [\n  "{KEY}",\n  "{KEY}",\n]\n', 3, "is already in trusted_issuers[0]"
    ),
    "a subnet too large": Wrong('default_subnet = "300"\n', 1, "300"),
    "a rule without a subnet": Wrong(
        '[[subnet_rules]]\nmatch_tags = ["a"]\n', 1, "'target_subnet' is missing; expected a subnet"
    ),
    "two kinds of rules": Wrong(
        '[[subnet_rules]]\nmatch_tags = []\ntarget_subnet = "1"\n[[level_rules]]\ntag_prefix = "r:"\nlevel = 0\nvalues = { eu = 1 }\n',
        4,
        "subnet_rules and level_rules are both set; remove one of them",
    ),
    "a level too deep": Wrong(
        '[[level_rules]]\ntag_prefix = "r:"\nlevel = 4\nvalues = { eu = 1 }\n', 3, "must be in [0, 3], got 4"
    ),
    "a value of a level": Wrong(
        '[[level_rules]]\ntag_prefix = "r:"\nlevel = 0\nvalues = { eu = 0 }\n', 4, "must be in [1, 255], got 0"
    ),
    "a default beside level rules": Wrong(
        'default_subnet = "1"\n[[level_rules]]\ntag_prefix = "r:"\nlevel = 0\nvalues = { eu = 1 }\n',
        1,
        "not allowed with level_rules",
    ),
    "a gateway without a node": Wrong(
        '[[gateways]]\npeer_subnets = ["3"]\n', 1, "'node' is missing; expected a string"
    ),
    "a bad name of a node": Wrong('[[gateways]]\nnode = "gw west"\n', 2, "must be the name of a node"),
    "a gateway twice": Wrong(GATEWAY + GATEWAY, 4, "'gw' is already in gateways[0]; remove one of the entries"),
    "unknown choice of a gateway": Wrong(GATEWAY + 'unknown_channels = "ask"\n', 3, "one of drop, forward"),
    "an export twice": Wrong(
        EXPORTED + GATEWAY + '[[exports]]\nchannel = "a/b"\nsubnets = ["3"]\n' * 2, 10, "'a/b' is already in exports[0]"
    ),
    "an export without a gateway": Wrong(
        EXPORTED + '[[exports]]\nchannel = "a/b"\nsubnets = ["3"]\n',
        5,
        "no gateway is listed; add a [[gateways]] entry",
    ),
    "an export of nothing": Wrong(
        GATEWAY + '[[exports]]\nchannel = "a/b"\nsubnets = ["3"]\n', 4, "has no [[channels]] entry; add one"
    ),
    "an export without effect": Wrong(
        CHANNEL + GATEWAY + '[[exports]]\nchannel = "a/b"\nsubnets = ["3"]\n',
        6,
        "so the export has no effect; set its visibility",
    ),
}
ALLOWED = re.compile(
    r"\b(must|expected|choose|did you mean|remove|set|write|add|use|only allowed|not allowed|correct|does not begin|cannot be|at most)\b"
)
"""Words by which a message says what is allowed, or what to do."""


def test_there_are_enough_wrong_files() -> None:
    assert len(WRONG) >= 40


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_has_a_clear_message(name: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(WRONG[name].text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        read_policy(file)
    message = str(caught.value)
    assert f"{file}, line {WRONG[name].line})" in message
    assert WRONG[name].tells in message
    assert ALLOWED.search(message), message
    assert "\n" not in message


GATES = 'priority = 1\n[[gateways]]\npeer_subnets = ["x"]\n[[exports]]\n'
SEVERAL = {
    "in one table": (
        CHANNEL + 'priority = "high"\nvisibilty = "global"\nlog = "published"\nrequire_token = 1\n',
        [
            (3, "expected an integer"),
            (4, "did you mean 'visibility'?"),
            (5, "setting of one node"),
            (6, "true or false"),
        ],
    ),
    "in several tables and beside them": (
        'heartbeat_s = 1\ntrusted_issuers = ["ab", "cd"]\nunlisted = "open"\n[[channels]]\nname = "A"\n[[channels]]\n'
        + GATES,
        [
            (1, "setting of one node"),
            (2, "expected 64 hex digits, got 'ab'"),
            (2, "expected 64 hex digits, got 'cd'"),
            (3, "did you mean 'unlisted_channels'?"),
            (5, "upper case"),
            (6, "set exactly one of 'name' and 'prefix'"),
            (8, "'node' is missing"),
            (9, "subnet"),
            (10, "'channel' is missing"),
        ],
    ),
    "between entries": (
        CHANNEL + CHANNEL + GATEWAY + GATEWAY + '[[exports]]\nchannel = "c"\nsubnets = []\n',
        [(3, "already in channels[0]"), (8, "already in gateways[0]")],
    ),
    "exports": (
        GATEWAY + CHANNEL + '[[exports]]\nchannel = "a/b"\nsubnets = []\n[[exports]]\nchannel = "c"\nsubnets = []\n',
        [(6, "has no effect"), (9, "has no [[channels]] entry")],
    ),
    "too many": (
        "".join(f"[[channels]]\nnumber = {number}\n" for number in range(100)),
        [(2 * n, "unknown") for n in range(1, 21)],
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_all_errors_of_a_file_are_found_with_their_lines(name: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    text, expected = SEVERAL[name]
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        read_policy(file)
    messages = [str(one) for one in (caught.value, *caught.value.more)]
    lines = [int(re.search(r", line (\d+)\)", message)[1]) for message in messages]  # type: ignore[index]
    found = sorted(zip(lines, messages, strict=True))
    assert [line for line, _ in found] == [line for line, _ in expected]
    for (_, message), (_, tells) in zip(found, expected, strict=True):
        assert tells in message
        assert ALLOWED.search(message), message


def test_a_good_file_is_a_policy(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(GOOD, "utf-8")
    found = read_policy(file)
    assert found.content == GOOD.encode()
    policy = found.policy
    assert [entry.visibility for entry in policy.channels] == [Visibility.EXPORTED, Visibility.PARENT_VISIBLE]
    assert policy.refuses_unlisted
    assert policy.trusted_issuers == (bytes.fromhex(KEY),)
    gateway = policy.gateway_of(7, "gw-west")
    assert gateway is not None
    assert gateway.exports == {"robots/pose": (SubnetId.parse("4"),)}
    assert policy.gateway_of(7, "gw-east") is None


def test_files_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    with pytest.raises(ConfigError, match=r"policy_file .*the file does not exist; check the path"):
        read_policy(file)
    file.write_bytes(b"a = 1\nb = \xff\n")
    with pytest.raises(ConfigError, match=r"line 2\): the file is not UTF-8 text"):
        read_policy(file)
    file.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_policy(file)


def test_a_signature_is_a_comment_that_belongs_to_the_rest() -> None:
    issuer = Identity.from_seed(bytes(range(32)))
    statement = PolicyStatement.sign(issuer, 3, GOOD.encode())
    content = signed_content(statement, GOOD.encode())
    found = read_signed(content, "here")
    assert (found.statement, found.version) == (statement, 3)
    assert found.policy == parse_policy(GOOD.encode(), "there")
    assert body_of(content) == GOOD.encode() == body_of(GOOD.encode())
    assert read_signed(GOOD.encode(), "here").version == 0
    for changed in (
        content + b"\n",
        content.replace(b"version=3", b"version=4"),
        b"# meshbus-policy\n" + GOOD.encode(),
    ):
        with pytest.raises(ConfigError, match=r"here, line 1\): the first line is not a signature of the rest"):
            read_signed(changed, "here")


def test_a_node_has_the_policy_of_its_file_or_of_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(GOOD, "utf-8")
    of_file = policy_of(NodeConfig.load(env={}, policy_file=file), 7)
    assert of_file == parse_policy(GOOD.encode(), "there")
    own = policy_of(NodeConfig.load(env={}, gateway=True, peer_subnets=["4"], channels=[{"name": "a"}]), 7)
    assert own.gateway_of(7, None) is not None
    assert own.gateway_of(8, None) is None
